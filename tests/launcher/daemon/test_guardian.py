"""The guardian: kills a silent daemon and its node's scripts, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf_launcher.daemon import guardian

PROGRAM = """
import os, sys, time
from rlinf_launcher.daemon import guardian
guardian._ORDERLY_END_S = 0.1
guardian.end_scripts = lambda paths: print("scripts of", paths, flush=True)  # it looks at all processes there are
def daemon(line, tell, sign):
    print(os.getpid(), flush=True)
    time.sleep(600) if sys.argv[1] == "hangs" else sys.stdin.read()
    return 7
guardian.guard(daemon)
"""


@pytest.mark.parametrize(("daemon", "code"), [("hangs", 128 + 9), ("ends", 7)])
def test_a_cut_lifeline_also_ends_a_hanging_daemon(daemon: str, code: int) -> None:
    command = [sys.executable, "-c", PROGRAM, daemon]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b'{"run_dir": "/nowhere/run", "node": 3}\n')
            process.stdin.flush()
            process.stdout.readline()
            process.stdin.close()
            process.stdin = None
            assert process.wait(20) == code
            assert process.stdout.read() == b"scripts of ['/nowhere/run/node-3']\n"
        finally:
            process.kill()


def test_without_a_configuration_the_prepared_folder_is_removed(tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    program = "import sys; from rlinf_launcher.daemon import guardian; guardian.read_first_line(sys.argv[1])"
    ended = subprocess.run(
        [sys.executable, "-c", program, prepared], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert "stdin ended before the first line" in ended.stderr
    assert not prepared.exists()


def test_a_guardian_that_cannot_fork_removes_the_prepared_folder(tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    program = """
import os
from rlinf_launcher.daemon import guardian
def refuse(): raise BlockingIOError(11, "no more processes")
os.fork = refuse
guardian.guard(print)
"""
    line = json.dumps({"run_dir": str(prepared), "node": 0}) + "\n"
    ended = subprocess.run([sys.executable, "-c", program], input=line, capture_output=True, text=True)
    assert ended.stderr == "rlinf daemon: it cannot be forked: [Errno 11] no more processes\n"
    assert not prepared.exists()


SILENT = """
import os, signal, sys
from rlinf_launcher.daemon import guardian
def daemon(line, tell, sign):
    sign.wind_up(0.1)
    if sys.argv[1] == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    signal.sigtimedwait([signal.SIGUSR2], 0.3)  # it runs out, and the guardian is not hasty
    sign.wind_up(600)
    sys.stdin.read()
    return 7
guardian._GRACE_S = 5 if sys.argv[1] == "late" else 0.1
guardian.end_scripts = lambda paths: None
guardian.guard(daemon)
"""


@pytest.mark.parametrize(("daemon", "code"), [("stopped", 128 + 9), ("late", 7)])
def test_only_a_daemon_silent_beyond_its_lease_is_killed(daemon: str, code: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SILENT, daemon], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(b"{}\n")
            process.stdin.flush()
            if daemon == "late":
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(1)
                process.stdin.close()
                process.stdin = None
            assert process.wait(20) == code
            assert (b"is silent for longer than its lease" in process.stderr.read()) == (daemon == "stopped")
        finally:
            process.kill()


def test_scripts_are_killed_except_memory_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    environment = {**os.environ, "RLINF_NODE_SOCKET": f"{tmp_path}/node.sock"}
    tracker = [sys.executable, "-c", "input()", "torch_shm_manager"]
    with (
        subprocess.Popen(["cat"], env=environment, stdin=subprocess.PIPE) as script,
        subprocess.Popen(tracker, env=environment, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL),
        monkeypatch.context() as patch,
    ):
        patch.setattr(os, "kill", lambda *how: killed.append(how))
        guardian.end_scripts([str(tmp_path)])
    assert killed == [(script.pid, signal.SIGKILL)]


def test_a_machine_without_a_free_file_delays_the_cleanup_only() -> None:
    program = """
import errno, os, signal
from pathlib import Path
from rlinf_launcher.daemon import guardian
if not (pid := os.fork()):
    signal.pause()
reads, lacks = Path.read_text, [OSError(errno.ENFILE, "no file is left")]
def read_text(path):
    if lacks:
        raise lacks.pop()
    return reads(path)
Path.read_text = read_text
print(guardian.sweep() == {pid: -9})
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20)
    assert ended.stdout == "True\n", ended.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's process")
@pytest.mark.parametrize("end", ["guardian.sweep()", "orphans._others.clear(); orphans.end()"])
def test_a_child_that_runs_as_another_user_is_left_alone(end: str) -> None:
    program = f"""
import os, sys
from rlinf_launcher.daemon import guardian
from rlinf_launcher.orphans import Orphans
orphans = Orphans("0a1b2c3d")
pid = os.fork()
if not pid:
    sys.stdin.read()  # its environment is not readable either
    os._exit(0)
os.setresuid(65534, 65534, 65534)
{end}
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        assert process.wait(20) == 0
