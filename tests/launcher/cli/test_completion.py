"""Completion of both commands' words, as shells do it with the scripts that the commands print."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rlinf_async.errors import ConfigError
from rlinf_launcher.cli import control, main
from rlinf_launcher.cli.completion import SHELLS, launch_script
from rlinf_launcher.cli.flags import FLAGS

ASKED = """
source ./script; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
read -ra registered < <(complete -p "$1")
"${registered[-2]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
"""A TAB behind the last of the words, without a terminal."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files to complete, in the shell's working directory."""
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").touch()
    (tmp_path / "data").mkdir()
    return tmp_path


def script_of(command: str, shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    run = {"rlinf-launch": main.main, "rlinf-ctl": control.main}[command]
    assert run(["--print-completion", shell]) == 0
    return capsys.readouterr().out


def completed(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Return bash's proposals for the last word of a line."""
    words = line.split(" ")
    (folder / "script").write_text(script_of(words[0], "bash", capsys))
    command = ["bash", "--norc", "--noprofile", "-c", ASKED, "bash", "script", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("rlinf-launch --lo", {"--local-nodes", "--log-dir"}),
        ("rlinf-launch --launcher ", {"auto", "srun", "ssh"}),
        ("rlinf-launch --launcher =", {"auto", "srun", "ssh"}),
        ("rlinf-launch --nnodes = 2 --launcher = s", {"srun", "ssh"}),
        ("rlinf-launch --tee ", {"all", "none"}),
        ("rlinf-launch --cwd ", {"data"}),
        ("rlinf-launch --nnodes 2 tr", {"train.py"}),
        ("rlinf-launch --json --hosts jo", {"job.yaml"}),
        ("rlinf-ctl sta", {"status", "stack"}),
        ("rlinf-ctl logs --t", {"--timeout", "--tail"}),
        ("rlinf-ctl --run-dir d", {"data"}),
        ("rlinf-ctl page jo", {"job.yaml"}),
        ("rlinf-ctl check --hos", {"--hosts", "--hostfile"}),
        ("rlinf-ctl check --launcher ", {"auto", "srun", "ssh"}),
        ("rlinf-ctl sweep --for", {"--force"}),
        ("rlinf-ctl --print-completion ", set(SHELLS)),
    ],
)
def test_bash_completes(line: str, offered: set[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert completed(line, folder, capsys) == offered


def test_bash_offers_every_flag_before_the_script_and_none_behind(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = {name for flag in FLAGS for name in flag.spellings if name.startswith("--")}
    assert completed("rlinf-launch --", folder, capsys) == long
    assert completed("rlinf-launch train.py --", folder, capsys) == set()


def test_the_bash_script_names_the_folder_of_bash_completion(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in ("rlinf-launch", "rlinf-ctl"):
        text = script_of(command, "bash", capsys)
        assert f"# Usage: copy this to ~/.local/share/bash-completion/completions/{command}\n" in text
        assert "bash_completion/" not in text


@pytest.mark.parametrize("command", ["rlinf-launch", "rlinf-ctl"])
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_is_one_that_the_shell_reads(
    command: str, shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = script_of(command, shell, capsys)
    assert command in text
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed: apt-get install {shell}")
    (tmp_path / "script").write_text(text)
    subprocess.run([program, "-n", "script"], cwd=tmp_path, timeout=30, check=True)


def test_an_unknown_shell_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="'tcsh' is no shell of bash, zsh, fish\n  fix: name one"):
        launch_script("tcsh")
    assert control.main(["--print-completion", "tcsh"]) == 2
