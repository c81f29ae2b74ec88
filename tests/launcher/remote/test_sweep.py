"""Sweeps of live runs: refused, or forced with a reason for the launcher."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from rlinf_async._wire.local_socket import listen
from rlinf_launcher import orphans
from rlinf_launcher.cli.parsing import parse
from rlinf_launcher.daemon import guardian
from rlinf_launcher.remote import sweep as sweep_module, sweeper
from rlinf_launcher.remote.plan import plan
from tests._support import standing_runs
from tests._support.inspected_runs import InspectedRun

pytestmark = pytest.mark.shared_cluster


def sweep(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlinf_launcher", "--sweep", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_a_live_run_is_swept_by_force_only() -> None:
    with InspectedRun(Path(standing_runs.__file__), flags=("--local-nodes", "2")) as run:
        run.wait_for("standing", 60)
        name = json.loads(run.ask("ps", "--json").stdout)["run"]
        there = run.processes()
        refused = sweep(name)
        assert (refused.returncode, refused.stdout) == (255, "")
        assert f"run {name} is alive: a daemon of it answers on localhost; nothing was swept" in refused.stderr
        assert f"`rlinf-ctl down {name}` ends it in order; --force sweeps it anyway" in refused.stderr
        assert set(there) <= set(run.processes())
        swept = sweep(name, "--force")
        assert swept.returncode == 0, swept.stderr
        assert run.process.wait(10) == 130
        assert run.processes() == []
        assert "lost: it was ended by a sweep (rlinf-launch --sweep, pid " in run.output
        assert "signal 15" not in run.output


async def test_no_more_hosts_are_connected_to_at_once_than_the_setting_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLINF_SSH_AT_ONCE", "2")
    waiting: set[object] = set()
    most: list[int] = []

    class SlowLifeline(AsyncMock):
        async def receive(self, timeout: float | None) -> dict[str, Any]:
            await asyncio.sleep(0)
            waiting.discard(self)
            return {"alive": [], "ended": [], "removed": []}

    async def start(*words: Any, **options: Any) -> SlowLifeline:
        waiting.add(lifeline := SlowLifeline())
        most.append(len(waiting))
        return lifeline

    monkeypatch.setattr(sweep_module.Lifeline, "start", start)
    nodes = plan((), parse(["--local-nodes", "6", "--sweep", "0123abcd"], {}))
    results, failures = await sweep_module.sweep(nodes, "0123abcd")
    assert (len(results), failures, max(most)) == (6, {}, 2)


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("{session} {start} {boot}", True),
        ("{session} 1 {boot}", False),  # the number is another process's now
        ("{session} {start} another-boot", False),
        ("{ended} 1 {boot}", True),  # its first process has ended
        ("12 34\n{session} {start} {boot}\n5", True),  # a full disk has cut lines off
    ],
)
def test_processes_without_environment_are_found_by_a_recorded_session(
    line: str, is_found: bool, tmp_path: Path
) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    leader = ["sh", "-c", "sleep 100 & echo $!; exec sleep ${0}", "0" if "{ended}" in line else "100"]
    with subprocess.Popen(leader, env={}, start_new_session=True, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        member = int(process.stdout.readline())
        if "{ended}" in line:
            process.wait()
        start = sweeper.start_of(Path(f"/proc/{process.pid}"))
        (tmp_path / "node-0").mkdir()
        recorded = line.format(session=process.pid, ended=process.pid, start=start, boot=boot)
        (tmp_path / "node-0" / "sessions").write_text(recorded + "\n")
        found = sweeper.processes_of("0badcafe", sweeper.sessions_of("0badcafe", [tmp_path]))
        os.killpg(process.pid, signal.SIGKILL)
        assert (member in found) is is_found


def test_a_process_whose_name_is_no_text_is_found() -> None:
    code = "import time; open('/proc/self/comm', 'wb').write(b'\\xd0'); print(flush=True); time.sleep(20)"
    environment = {"RLINF_RUN_ID": "0badcafe"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = sweeper.processes_of("0badcafe", {})
        process.kill()
    assert set(found) == {process.pid}


def test_a_base_that_is_too_long_for_a_path_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [tmp_path / f"rlinf-{os.getuid()}-0123abcd", tmp_path / "rlinf-0123abcd-2"]
    for place in places:
        place.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/" + "x" * 5000)
    monkeypatch.setattr(sweeper.tempfile, "gettempdir", lambda: str(tmp_path))
    assert sweeper.run_dirs("0123abcd") == sorted(places)


def test_a_killed_process_has_time_to_give_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    killed: list[float] = []

    def send(pids: Any, number: int) -> None:
        if number == signal.SIGKILL:
            killed.append(time.monotonic())

    def processes_of(run: str, sessions: Any) -> dict[int, list[bytes]]:
        return {} if killed and time.monotonic() > killed[0] + 1.0 else {os.getpid(): []}

    request = json.dumps({"run": "0badcafe", "marker": "", "by": ""}).encode()
    stdin = io.BytesIO(b"%010d%s\n" % (len(request), request))
    monkeypatch.setattr(sweeper, "_GRACE_S", 0.0)
    monkeypatch.setattr(sweeper, "processes_of", processes_of)
    monkeypatch.setattr(sweeper, "run_dirs", lambda run: [])
    monkeypatch.setattr(sweeper, "send", send)
    monkeypatch.setattr(sweeper, "tell", lambda request, message: told.append(message))
    sweeper.main(stdin.read)
    assert told[-1]["event"] == "swept"
    assert told[-1]["left"] == []


def test_all_sweeps_know_the_same_trackers() -> None:
    assert guardian.TRACKERS == sweeper._TRACKERS == orphans._TRACKERS
    assert guardian.TRACKERS_S == sweeper._TRACKERS_S == orphans._TRACKERS_S


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a path that is too long for a socket."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    return folder / "node.sock"


@pytest.fixture
def listener(path: Path) -> Iterator[socket.socket]:
    with listen(str(path)) as listener:
        yield listener


def test_a_daemon_answers_a_shut_connection_unless_it_is_stopped(
    path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "_ANSWER_TIMEOUT_S", 0.05)
    assert not sweeper.answers(path)
    assert not sweeper.answers(path.with_name("gone.sock"))
    monkeypatch.setattr(sweeper, "_ANSWER_TIMEOUT_S", 10.0)
    listener.setblocking(True)
    listener.accept()[0].close()  # the one that was not answered
    serving = threading.Thread(target=lambda: listener.accept()[0].close())
    serving.start()
    assert sweeper.answers(path)
    serving.join()
