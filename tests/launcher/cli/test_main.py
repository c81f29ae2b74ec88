"""``rlinf-launch`` from the user's view: words in, exit code and text out; the nodes are fakes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from rlinf_launcher.cli import main
from tests._support.fake_daemons import Stage
from tests._support.until import until

CHECKOUT = Path(__file__).parents[3]

PATIENT = """
import os, signal, time
out = os.open(os.environ["OUT"], os.O_WRONLY | os.O_CREAT)
def count(*_):  # perhaps in the midst of the line below, which a print would not survive
    os.write(out, b"SIGINT\\n")
signal.signal(signal.SIGINT, count)
os.write(out, b"running\\n")
while "SIGINT" not in open(os.environ["OUT"]).read():
    time.sleep(0.01)
time.sleep(0.2)
"""


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def run(stage: Stage, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        stage.launcher(*words),
        cwd=CHECKOUT,
        env=stage.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


@contextmanager
def started(
    stage: Stage, *words: str, command: tuple[str, ...] = (), **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A launcher whose script has reported that it is running."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    argv = [*command, *stage.launcher(*words)]
    with subprocess.Popen(argv, cwd=CHECKOUT, env=stage.environ, text=True, **options) as process:
        try:
            until(lambda: (stage.folder / "out").exists() and "running" in stage.out)
            yield process
        finally:
            process.kill()


def alive(*pids: int) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_stdout_is_the_scripts_and_so_is_the_exit_code(stage: Stage) -> None:
    stage.runs("import sys; print('result', *sys.argv[1:]); sys.exit(3)")
    done = run(stage, str(stage.script), "--lr", "1", "-q")
    assert (done.returncode, done.stdout) == (3, "result --lr 1 -q\n")
    lines = done.stderr.splitlines()
    assert lines[0].startswith("rlinf run ")
    assert re.search(r": 1 node, logs in /\S+/rlinf-logs-\d+/[0-9a-f]{8}$", lines[0])
    assert lines[-1] == f"{stage.script} ended with exit code 3"


def test_quiet_says_nothing_of_a_run_that_goes_well(stage: Stage) -> None:
    stage.runs("import sys; print('result'); print('warned', file=sys.stderr)")
    done = run(stage, "-q", str(stage.script))
    assert (done.returncode, done.stdout, done.stderr) == (0, "result\n", "warned\n")


def test_json_tells_the_same_story_to_machines(stage: Stage) -> None:
    stage.runs("print('result')")
    done = run(stage, "--json", "--local-nodes", "2", str(stage.script))
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert events[0]["event"] == "run"
    assert events[0]["log_dir"].endswith(events[0]["run"])
    assert events[-1] == {"event": "exit", "script": str(stage.script), "code": 0, "script_code": 0}
    (ready,) = [event for event in events if event["event"] == "ready"]
    assert (ready["nodes"], ready["cpus"]) == (2, 2), "two nodes of one machine share its CPUs"
    assert [type(event["daemon"]) for event in events if "daemon" in event] == [float, float]
    states = [event["state"] for event in events if event["event"] == "node" and event["name"] == "local1"]
    assert states == ["reached", "up", "ready"]


def test_quiet_json_says_nothing_of_a_run_that_goes_well(stage: Stage) -> None:
    stage.runs("print('result')")
    done = run(stage, "-q", "--json", str(stage.script))
    assert (done.returncode, done.stdout, done.stderr) == (0, "result\n", "")


@pytest.mark.parametrize(
    "words",
    [
        ("--check",),
        ("--check", "train.py"),
        ("--dry-run",),
        ("--dry-run", "--show-placement", "job.yaml"),
        ("--show-placement", "job.yaml"),
        ("--version",),
        ("--sweep", "0a1b2c3d"),
        ("--no-such-flag",),
        ("--hosts", "no_such_file", "--check"),
        ("--show-placement", "no_such_file.yaml"),
    ],
)
def test_quiet_json_is_json_and_nothing_else(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("cluster: {num_nodes: 1, component_placement: {actor: 0}}")
    code = main.main(["-q", "--json", *words])
    out, err = capfd.readouterr()
    told, errors = ([json.loads(line) for line in text.splitlines()] for text in (out, err))
    assert all(event["event"] in ("check", "dry_run", "placement", "version", "sweep") for event in told)
    assert [event["event"] for event in errors] == ["error"] * (code == 2)
    assert bool(told) != bool(errors)


def test_a_module_runs_as_under_python(stage: Stage) -> None:
    (stage.folder / "path/pkg").mkdir()
    (stage.folder / "path/pkg/__main__.py").write_text("import sys; print(sys.argv[1:])")
    done = run(stage, "-m", "pkg", "a")
    assert (done.returncode, done.stdout) == (0, "['a']\n"), done.stderr


def test_a_missing_script_is_reported_by_python(stage: Stage) -> None:
    done = run(stage, "no_such.py")
    assert done.returncode == 2
    assert "can't open file" in done.stderr
    assert not list(stage.folder.glob("*.json"))


def test_a_failing_import_ends_with_its_own_traceback(stage: Stage) -> None:
    stage.runs("import no_such_module")
    done = run(stage, "-q", str(stage.script))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'no_such_module'"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hots", "a,b", "train.py"], "did you mean"),
        ([], "no script is named"),
        (["--hosts", "a,b", "--nnodes", "3", "--dry-run"], "--nnodes 3, but there are 2 hosts: a, b"),
        (["--hosts", "slots=8,", "--dry-run"], ":1:1: "),
        (["--log-dir", "~no_such_user/logs", "train.py"], "'~no_such_user/logs' cannot be made absolute"),
    ],
)
def test_wrong_usage_is_one_block_and_exit_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(words) == 2
    screen = capsys.readouterr()
    assert said in screen.err
    assert "fix: " in screen.err
    assert "Traceback" not in screen.err
    assert screen.out == ""


@pytest.mark.parametrize("words", ["rlinf_launcher --hosts - --dry-run", "rlinf_launcher.cli.control ps"])
def test_closed_standard_descriptors_are_no_crash(words: str) -> None:
    closed = f"{sys.executable} -m {words} <&- >&-"
    done = subprocess.run(["sh", "-c", closed], cwd=CHECKOUT, stderr=subprocess.PIPE, text=True)
    assert "Traceback" not in done.stderr


def test_a_full_disk_behind_stdout_is_one_error() -> None:
    full = f"{sys.executable} -m rlinf_launcher --help >/dev/full"
    done = subprocess.run(["sh", "-c", full], cwd=CHECKOUT, stderr=subprocess.PIPE, text=True)
    said = "rlinf-launch: stdout cannot be written: No space left on device\n  fix: redirect it elsewhere\n"
    assert (done.returncode, done.stderr) == (255, said)


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii:strict"])
def test_what_stdout_cannot_encode_is_escaped(encoding: str) -> None:
    environ = {**os.environ, "WANDB_NAME": "\udcff", "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "rlinf_launcher", "--dry-run", "--local-nodes", "1", __file__]
    done = subprocess.run(command, cwd=CHECKOUT, env=environ, capture_output=True, text=True)
    assert "WANDB_NAME=\\udcff\n" in done.stdout, done.stderr


def test_a_removed_working_directory_is_named_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main.main(["--dry-run", "--local-nodes", "1", "train.py"]) == 255
    assert re.search(r"the working directory of process \d+ has been removed.*\n  fix: `cd`", capsys.readouterr().err)


def test_ctrl_c_while_hosts_are_read_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "find_hosts", Mock(side_effect=KeyboardInterrupt))
    assert main.main(["--hosts", "-", "--check"]) == 130


def test_the_limit_of_open_files_follows_the_number_of_nodes() -> None:
    usual, utmost = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, utmost))
        main._allow_open_files(1)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 256
        main._allow_open_files(200)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 3 * 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, utmost))


def test_a_wrong_hosts_file_is_shown_with_place_and_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = tmp_path / "nodes.txt"
    hosts.write_text("node01\nnode02 slots=eight\n")
    assert main.main(["--hosts", str(hosts), "--dry-run"]) == 2
    assert f"{hosts}:2:" in capsys.readouterr().err


def test_hosts_that_cannot_be_reached_end_in_255(stage: Stage) -> None:
    done = run(stage, "--hosts", "refused,there", str(stage.script))
    assert done.returncode == 255
    assert "error: 1 of 2 nodes could not be started:\n  refused  ssh: nothing listens on port 22" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_interpreter_that_is_not_on_this_machine_is_said(stage: Stage) -> None:
    done = run(stage, "--python", "/no/python", str(stage.script))
    assert done.returncode == 255
    assert "localhost  /no/python cannot be started: No such file" in done.stderr
    hosts = stage.folder / "nodes.txt"
    hosts.write_text("refused\n")
    done = run(stage, "--hosts", str(hosts), "--python", "/no/python", str(stage.script))
    assert "--python /no/python is not on this machine: the script itself runs with" in done.stderr


def test_dry_run_shows_everything_and_does_nothing(stage: Stage) -> None:
    stage.runs("pass")
    words = ("-e", "WANDB_API_KEY=geheim", "--hosts", "a,u@b:2222,localhost", str(stage.script), "x")
    done = run(stage, "--dry-run", *words)
    assert done.returncode == 0
    assert "hosts from --hosts a,u@b:2222,localhost" in done.stdout
    assert "0     a slots=" in done.stdout
    assert "2     localhost slots=(one per GPU, else 1) (local) from --hosts" in done.stdout
    assert "  ssh -T -o BatchMode=yes " in done.stdout
    assert " -l u -p 2222 " in done.stdout
    assert "WANDB_API_KEY=***" in done.stdout
    assert "geheim" not in done.stdout
    assert done.stdout.splitlines()[-1].endswith(f"{stage.script} x")
    assert not list(stage.folder.glob("*.json"))


def test_dry_run_reports_a_missing_script_and_its_hosts_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--dry-run", "--local-nodes", "2", "x" * 300]) == 255  # longer than the name of any file
    capsys.readouterr()
    assert main.main(["--dry-run", "--local-nodes", "2", "no_such.py"]) == 255
    out = capsys.readouterr().out
    assert out.startswith("hosts from --local-nodes 2\n")
    assert "0     local0 slots=(one per GPU, else 1) (this machine, without ssh) from --local-nodes 2\n" in out
    assert "script: there is no no_such.py here\nfix: check the path" in out


def test_a_flag_of_the_launcher_behind_the_script_is_noted(stage: Stage) -> None:
    stage.runs("import sys; sys.exit(3)")
    done = run(stage, "--json", str(stage.script), "--local-nodes=2", "--timeout", "9", "-v")
    notes = [event["text"] for event in map(json.loads, done.stderr.splitlines()) if event["event"] == "note"]
    assert notes[0] == (
        "note: --local-nodes stands after the script, and so for it; rlinf-launch's flags stand before the script"
    )


def test_dry_run_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--dry-run", "--json", "--hosts", "a,b:8", "-e", "MY_TOKEN=geheim"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(node["rank"], node["name"], node["hidden"]) for node in told["nodes"]] == [
        (0, "a", False),
        (1, "b", False),
        (2, "localhost", True),
    ]
    assert told["nodes"][0]["argv"][:2] == ["ssh", "-T"]
    assert told["env"]["MY_TOKEN"] == "***"


def test_check_says_what_is_wrong_with_each_host(stage: Stage) -> None:
    done = run(stage, "--check", "--hosts", "refused,there")
    assert done.returncode == 255
    rows = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines() if len(line.split()) > 5}
    assert rows | {"refused": "failed", "there": "ok", "localhost": "ok"} == rows
    assert "ssh: nothing listens on port 22" in done.stdout
    assert not list(stage.folder.glob("*.json"))
    assert run(stage, "--check").returncode == 0


def test_check_for_machines(stage: Stage) -> None:
    done = run(stage, "--check", "--json", "--hosts", "refused,there")
    told = {event["name"]: event for event in map(json.loads, done.stdout.splitlines())}
    assert told["refused"]["answer"] is None
    assert told["there"]["failure"] is None
    assert told["there"]["answer"]["python"] == "{}.{}.{}".format(*sys.version_info[:3])


def test_check_says_what_it_checked_also_where_all_is_well(stage: Stage) -> None:
    stage.runs("pass")
    done = run(stage, "--check", "--local-nodes", "2", str(stage.script))
    assert done.returncode == 0
    table, here, other, left = done.stdout.split("\n\n")
    assert table.startswith("NODE")
    python = "{}.{}.{}".format(*sys.version_info[:3])
    asked = (
        f"  Python 3.11 or newer, as the script's ({sys.executable}: {python})\n"
        "  packages rlinf_async, rlinf_launcher, torch, numpy, msgpack, cloudpickle, uvloop, grpc, cryptography, "
        f"and the version of rlinf-async\n  working directory {CHECKOUT}\n"
    )
    assert here.startswith(f"checked on local0:\n{asked}  a folder for the run in ")
    assert here.endswith(f"\n  its address for the other nodes\n  its clock\n  script {stage.script}")
    assert other.startswith(f"checked on local1:\n{asked}  a folder for the run in ")
    assert left == "not checked: GPUs, whether the hosts reach each other\n"


def test_check_lists_its_checks_once_for_equal_hosts(stage: Stage) -> None:
    done = run(stage, "--check", "--hosts", "refused,there,elsewhere")
    assert "\nchecked on there, elsewhere, localhost:\n" in done.stdout
    assert "checked on refused" not in done.stdout


def test_check_misses_a_script_that_is_not_on_this_machine(stage: Stage) -> None:
    done = run(stage, "--check", "no_such.py")
    assert done.returncode == 255
    assert f"script: there is no no_such.py here\n  fix: check the path; it is seen from {CHECKOUT}" in done.stdout


def test_sweep_ends_what_bears_the_runs_id_and_nothing_else(stage: Stage) -> None:
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(1000)"
    deaf = [sys.executable, "-c", script]
    run_id = uuid.uuid4().hex[:8]
    run_dir = Path(os.environ["XDG_RUNTIME_DIR"], f"rlinf-{run_id}-2")
    run_dir.mkdir()
    environ = os.environ | {"RLINF_RUN_ID": run_id}
    other = os.environ | {"RLINF_RUN_ID": uuid.uuid4().hex[:8]}
    with (
        subprocess.Popen(["sleep", "1000"], env=environ) as mine,
        subprocess.Popen(deaf, env=environ, stdout=subprocess.PIPE) as deaf_one,
        subprocess.Popen(["sleep", "1000"], env=other) as theirs,
    ):
        try:
            assert deaf_one.stdout is not None
            deaf_one.stdout.readline()
            done = run(stage, "--sweep", run_id)
            assert done.returncode == 0, done.stdout + done.stderr
            assert (mine.wait(5), deaf_one.wait(5)) == (-15, -9)
            assert theirs.poll() is None
            assert f"localhost: 2 processes ended, {run_dir} removed" in done.stdout
            assert f"  {mine.pid} sleep 1000" in done.stdout
            assert not run_dir.exists()
        finally:
            for process in (mine, deaf_one, theirs):
                process.kill()


def test_a_run_beyond_its_timeout_ends_with_its_exit_code(stage: Stage) -> None:
    stage.runs(PATIENT)
    with started(stage, "--timeout", "4", str(stage.script)) as process:
        _, said = process.communicate(timeout=20)
        assert process.returncode == 124
        assert stage.out == "running\nSIGINT\n"
        assert "--timeout: 4 s have passed: ending in order" in said


def test_time_that_starting_takes_counts_too(stage: Stage) -> None:
    stage.runs("")
    done = run(stage, "--timeout", "0.05", str(stage.script))
    assert (done.returncode, done.stdout) == (124, "")


def test_a_run_within_its_timeout_keeps_its_exit_code(stage: Stage) -> None:
    stage.runs("raise SystemExit(3)")
    assert run(stage, "--timeout", "100", str(stage.script)).returncode == 3


async def test_nohup_is_respected_where_hosts_are_only_looked_at() -> None:
    async def look() -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.05)
        return 0

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert await main._interruptible(look()) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_nohup_is_respected(stage: Stage) -> None:
    stage.runs(PATIENT)
    with started(stage, str(stage.script), command=("nohup",)) as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=10)
        assert "SIGHUP" not in said
        assert process.returncode == 130


@contextmanager
def on_a_terminal(stage: Stage) -> Iterator[tuple[subprocess.Popen[str], int]]:
    terminal, line = os.openpty()
    try:
        files = {"stdin": line, "stdout": line, "stderr": line}
        with started(stage, "--local-nodes", "2", str(stage.script), command=("setsid", "-c"), **files) as process:
            yield process, terminal
    finally:
        os.close(line)
        os.close(terminal)


def shown(terminal: int) -> str:
    data = b""
    while select.select([terminal], [], [], 0)[0]:
        data += os.read(terminal, 65536)
    return data.decode()


def test_version_and_help_go_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rlinf-launch ")
    assert main.main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: rlinf-launch ")


def test_an_unread_stderr_blocks_neither_start_nor_end(stage: Stage) -> None:
    stage.runs("import sys; sys.exit(7)")
    read, write = os.pipe()
    with open(read), open(write, "wb", buffering=0) as full:
        os.set_blocking(write, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(write, bytes(4096)):
                pass
        os.set_blocking(write, True)
        argv = stage.launcher(str(stage.script))
        environ = {**stage.environ, "RLINF_OUTPUT_END_S": "0.1"}
        done = subprocess.run(argv, cwd=CHECKOUT, env=environ, stderr=full, timeout=20, check=False)
    assert done.returncode == 7
