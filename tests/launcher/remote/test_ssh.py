"""Command lines for the system's ssh, and explanations of its errors."""

from __future__ import annotations

import ast
import itertools
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf_async._wire.remote_exit import RemoteExit
from rlinf_async.errors import ConfigError
from rlinf_launcher.options import Options
from rlinf_launcher.remote.bootstrap import BOOTSTRAP, shipment
from rlinf_launcher.remote.host import Host
from rlinf_launcher.remote.ssh import ssh_connector

REFUSED = "ssh: connect to host node03 port 2222: Connection refused"
TIMED_OUT = "ssh: connect to host node03 port 22: Connection timed out"
UNKNOWN_NAME = "ssh: Could not resolve hostname node03: Name or service not known"
NO_ROUTE = "ssh: connect to host node03 port 22: No route to host"
DENIED = "u@node03: Permission denied (publickey,password)."
UNKNOWN_KEY = (
    "No ED25519 host key is known for [node03]:2222 and you have requested strict checking.\n"
    "Host key verification failed."
)
CHANGED_KEY = (
    "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\n"
    "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
    "Host key for [node03]:2222 has changed and you have requested strict checking.\n"
    "Host key verification failed."
)


def said(stderr: str, code: int = 255, host: Host | None = None, **options: object) -> str:
    host = host or Host("node03", user="u", port=2222)
    reached = ssh_connector(host, Options(**options), "/opt/v/bin/python")  # type: ignore[arg-type]
    return reached.explain(RemoteExit(code, (), tuple(stderr.splitlines())))


def test_the_command_line_is_strict_and_quiet() -> None:
    argv = ssh_connector(Host("node03"), Options(), "/usr/bin/python3").argv
    assert argv[:2] == ("ssh", "-T")
    settings = {word for flag, word in itertools.pairwise(argv) if flag == "-o"}
    assert settings == {
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        "ConnectTimeout=10",
        "ServerAliveInterval=5",
        "ServerAliveCountMax=3",
        "ForwardAgent=no",
        "ClearAllForwardings=yes",
    }
    assert argv[-3:-1] == ("--", "node03")


def test_accepting_new_keys_never_accepts_changed_ones() -> None:
    argv = ssh_connector(Host("node03"), Options(accept_new_host_keys=True), "python3").argv
    assert "StrictHostKeyChecking=accept-new" in argv


def test_user_arguments_precede_timeouts_and_follow_strictness() -> None:
    mine = ("-o", "ConnectTimeout=60", "-o", "StrictHostKeyChecking=no")
    options = Options(ssh_user="w", ssh_port=22, ssh_key=Path("/k"), ssh_args=mine)
    words = " ".join(ssh_connector(Host("node03", user="alice"), options, "python3").argv)
    assert " -l alice -p 22 -i /k " in words  # the hosts file knows better than --ssh-user
    # ssh takes the first value that it meets
    assert words.index("StrictHostKeyChecking=yes") < words.index("StrictHostKeyChecking=no")
    assert words.index("ConnectTimeout=60") < words.index("ConnectTimeout=10")


@pytest.mark.parametrize("name", ["-oProxyCommand=touch /tmp/x", "a b", "a;b", "$(id)", ""])
def test_a_host_resembling_an_option_or_command_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a host name"):
        ssh_connector(Host(name), Options(), "python3")


def test_the_python_there_is_one_word_of_the_shell_there() -> None:
    assert ssh_connector(Host("n"), Options(), "/opt/my python").argv[-1].startswith("exec '/opt/my python' -c 'exec(")
    assert ssh_connector(Host("n"), Options(), "~/v/bin/python").argv[-1].startswith("exec ~/v/bin/python -c")


def test_the_stub_survives_every_shell() -> None:
    assert BOOTSTRAP.isprintable()  # one line
    assert not set("'!`$") & set(BOOTSTRAP)
    assert "\\\\" not in BOOTSTRAP
    assert shlex.split(f"exec python -c '{BOOTSTRAP}'")[-1] == BOOTSTRAP
    source = ast.parse(BOOTSTRAP).body[0]
    assert isinstance(source, ast.Expr)
    assert isinstance(source.value, ast.Call)
    inner = ast.literal_eval(source.value.args[0])
    ast.parse(inner)


@pytest.mark.parametrize("program", ["preflight", "sweeper"])
def test_shipped_programs_run_alone_on_old_pythons(program: str) -> None:
    source = (Path(__file__).parents[3] / "launcher/remote" / f"{program}.py").read_text()
    tree = ast.parse(source, feature_version=(3, 6))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


def test_the_bootstrap_reads_no_byte_too_many(tmp_path: Path) -> None:
    program = b"import os\ndef main(read):\n os.write(1, read(3) + b'|' + os.read(0, 100))\n"
    stdin = b"%010d" % len(program) + program + b"abc" + b"the daemon's"
    done = subprocess.run(["sh", "-c", f"exec {sys.executable} -c '{BOOTSTRAP}'"], input=stdin, capture_output=True)
    assert done.stdout == b"abc|the daemon's", done.stderr


def test_program_and_request_are_shipped_with_lengths_before_the_archive() -> None:
    program, request, archive = shipment("preflight", {"marker": "m"}, b"tar")
    assert program.startswith(b"%010d" % (len(program) - 10))
    assert request == b'0000000015{"marker": "m"}'
    assert archive == b"tar"


@pytest.mark.parametrize(
    ("stderr", "cause", "hint"),
    [
        (REFUSED, "ssh: nothing listens on port 2222", "ssh -l u -p 2222 node03 true"),
        (TIMED_OUT, "ssh: no answer from node03", "ping node03"),
        (UNKNOWN_NAME, "ssh: the name node03 is not known", "getent hosts node03"),
        (NO_ROUTE, "ssh: No route to host", "ping node03"),
        (DENIED, "ssh: Permission denied (publickey,password)", "ssh -l u -p 2222 node03 true"),
        (UNKNOWN_KEY, "ssh: the host key of [node03]:2222 is not known here", "--accept-new-host-keys"),
        (CHANGED_KEY, "ssh: the host key of [node03]:2222 has changed", "ssh-keygen -R '[node03]:2222'"),
        ("Timeout, server node03 not responding.", "ssh: the connection died", "ping node03"),
        ("Connection closed by 10.1.1.1 port 22", "ssh: Connection closed by 10.1.1.1 port 22", "MaxStartups"),
    ],
)
def test_every_complaint_of_ssh_is_one_cause_and_one_hint(stderr: str, cause: str, hint: str) -> None:
    first, second = said(stderr).splitlines()
    assert first.startswith(cause)
    assert second.startswith("try: ")
    assert hint in second


def test_an_unknown_complaint_is_shown_as_it_is() -> None:
    assert said("a new kind of sorrow").splitlines() == [
        "ssh: a new kind of sorrow",
        "ssh | a new kind of sorrow",
        "try: ssh -l u -p 2222 node03 true",
    ]


def test_a_missing_python_is_named_with_its_path() -> None:
    text = said("bash: line 1: exec: /opt/v/bin/python: not found", code=127)
    assert text.startswith("/opt/v/bin/python is not there\nfix: ")
    assert said("exec: Command not found.", code=1).startswith("/opt/v/bin/python is not there\n")
    assert said("sh: 1: Permission denied", code=126).startswith("/opt/v/bin/python cannot be run there\n")


def test_an_ancient_python_is_named_with_its_version() -> None:
    text = said("rlinf: /usr/bin/python is Python 2.7.18", code=4)
    assert text.startswith("/usr/bin/python is Python 2.7.18, which is too old\nfix: --python PATH")


def test_a_killed_ssh_client_is_not_taken_for_the_daemon() -> None:
    assert said("", code=-9) == "its ssh client was killed by signal 9, on this machine"


def test_the_remote_programs_output_explains_what_ssh_cannot() -> None:
    text = said("Traceback (most recent call last):\nMemoryError", code=1)
    assert text.splitlines()[0] == "its process ended with exit code 1"
    assert "stderr | MemoryError" in text


@pytest.mark.parametrize(
    ("address", "cause"), [("127.0.0.1", "nothing listens on port 1"), ("name.invalid", "the name name.invalid")]
)
def test_the_ssh_of_this_machine_complains_as_expected(address: str, cause: str) -> None:
    reached = ssh_connector(Host(address, port=1), Options(ssh_args=("-F", "none")), "python3")
    done = subprocess.run(reached.argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=30)
    assert done.returncode == 255
    assert cause in reached.explain(RemoteExit(done.returncode, (), tuple(done.stderr.splitlines())))
