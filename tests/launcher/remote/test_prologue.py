"""``--prologue``: its effect on the interpreter, and its failures."""

from __future__ import annotations

import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf_async._wire.remote_exit import RemoteExit
from rlinf_launcher.options import Options
from rlinf_launcher.remote.bootstrap import BOOTSTRAP
from rlinf_launcher.remote.host import Host
from rlinf_launcher.remote.local import LocalConnector
from rlinf_launcher.remote.prologue import bootstrap_argv, explain_prologue
from rlinf_launcher.remote.ssh import ssh_connector

PROGRAM = (
    "import os, sys\ndef main(read):\n    os.write(1, repr((sys.executable, os.environ.get('A'), read(3))).encode())\n"
)


def run(prologue: str, python: str | None = None, argv: list[str] | None = None) -> subprocess.CompletedProcess[bytes]:
    words = argv or list(bootstrap_argv(python, sys.executable, prologue))
    stdin = b"%010d" % len(PROGRAM) + PROGRAM.encode() + b"abc"
    return subprocess.run(words, input=stdin, capture_output=True, timeout=30)


def told(prologue: str, done: subprocess.CompletedProcess[bytes]) -> str:
    text = explain_prologue(RemoteExit(done.returncode, (), tuple(done.stderr.decode().splitlines())), prologue)
    assert text is not None
    return text


def another_python(folder: Path) -> Path:
    path = folder / "bin" / "python3"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nA=its-own exec {sys.executable} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_exports_reach_the_interpreter_and_stdio_stays_the_bootstraps() -> None:
    done = run("echo loud; read line; export A='it is \"$HOME\"'")
    assert done.stdout.decode() == repr((sys.executable, 'it is "$HOME"', b"abc"))
    assert done.stderr == b"loud\n"


def test_without_a_prologue_no_shell_is_run() -> None:
    assert bootstrap_argv(None, "/opt/python", None) == ("/opt/python", "-c", BOOTSTRAP)
    assert LocalConnector("/a/python").argv == ("/a/python", "-c", BOOTSTRAP)


def test_the_prologues_python_is_used_unless_one_is_named(tmp_path: Path) -> None:
    another_python(tmp_path)
    prologue = f"export PATH={tmp_path}/bin:$PATH"
    assert b"its-own" in run(prologue).stdout
    assert b"its-own" not in run(prologue, python=sys.executable).stdout
    assert b"its-own" in run(prologue, python="python3").stdout
    assert b"its-own" not in run("export B=1").stdout


@pytest.mark.parametrize(
    ("prologue", "status", "last"),
    [
        ("echo no such module >&2; false", 1, "no such module"),
        ("source /nowhere/activate", 1, "/nowhere/activate: No such file or directory"),
        ("no-such-command", 127, "no-such-command: command not found"),
        ("echo bye; exit 7", 7, "bye"),
        ("set -e; ls /nowhere; export A=1", 2, "/nowhere"),
        ("if", 2, "syntax error"),
    ],
)
def test_a_failed_prologue_is_named_with_status_and_output(prologue: str, status: int, last: str) -> None:
    done = run(prologue)
    assert done.stdout == b""
    lines = told(prologue, done).splitlines()
    assert lines[0] == f"the prologue {prologue!r} ended with exit status {status}"
    assert any(line.startswith("stderr | ") and last in line for line in lines[1:-1])
    assert lines[-1].startswith("fix: ")


def test_a_strict_one_that_succeeds_starts_the_interpreter() -> None:
    assert run("set -eu; export A=1").stdout == repr((sys.executable, "1", b"abc")).encode()


def test_a_sourced_script_sees_no_words_of_ours(tmp_path: Path) -> None:
    script = tmp_path / "activate"
    script.write_text('export A="$#"\n')
    assert b"'0'" in run(f"source {script}").stdout


def test_a_failure_of_something_else_is_not_put_on_it() -> None:
    assert explain_prologue(RemoteExit(1, (), ("KeyError",)), "true") is None


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_over_ssh_it_passes_through_the_login_shell(shell: str) -> None:
    prologue = "export A='a  b'; x=\"$A\"; [ \"$x\" = 'a  b' ]"
    command = ssh_connector(Host("h"), Options(prologue=prologue), sys.executable).argv[-1]
    assert run("", argv=[shell, "-c", command]).stdout == repr((sys.executable, "a  b", b"abc")).encode()


def test_over_ssh_a_home_folder_is_the_hosts_own() -> None:
    connector = ssh_connector(Host("h"), Options(prologue="true", python="~/v/bin/python"), sys.executable)
    assert " ~/v/bin/python " in connector.argv[-1]
    assert shlex.split(connector.argv[-1])[:2] == ["exec", "bash"]


def test_a_prologues_failure_precedes_a_missing_interpreter() -> None:
    connector = ssh_connector(Host("h"), Options(prologue="module load x"), sys.executable)
    stderr = ("bash: line 1: module: command not found", "rlinf-prologue: exit status 127")
    text = connector.explain(RemoteExit(127, (), stderr))
    assert text.startswith("the prologue 'module load x' ended with exit status 127\nstderr | bash: line 1: module:")
