"""Inspections of ranks that sleep, hold the interpreter's lock, are stopped or die, and of a driver that is blocked."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from rlinf_async import Cluster, NodePlacementStrategy, Worker, WorkerDied, settings
from rlinf_async._core import operations
from rlinf_async._inspection.state.run_report import LOOP_BLOCKED, ActivityState, ProcessReport, from_data
from rlinf_launcher.daemon.process_state import is_stopped
from tests._support.unauthenticated_clients import node_directory

pytestmark = pytest.mark.shared_cluster

TIMEOUT_S = 0.6

DRIVER = """
    import asyncio, sys
    from rlinf_async import Cluster

    async def block():
        print(flush=True)
        sys.stdin.readline()

    async def main():
        async with Cluster(log_to_driver=False):
            await block()

    asyncio.run(main())
"""


class Busy(Worker):
    """Report its begin on one FIFO, and wait for a byte on another one."""

    def pid(self) -> int:
        return os.getpid()

    def sleep(self, folder: str) -> None:
        Path(folder, "begun").write_bytes(b"x")
        time.sleep(1.0)

    def hold(self, folder: str) -> int:
        """Hold the interpreter's lock in a C function."""
        end = os.open(Path(folder, "end"), os.O_RDWR)
        buffer = ctypes.create_string_buffer(1)
        Path(folder, "begun").write_bytes(b"x")
        return int(ctypes.PyDLL(None).read(end, buffer, 1))

    async def idle(self) -> int:
        return self._rank


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(settings.INSPECTION_TIMEOUT_S.variable, str(TIMEOUT_S))
        patch.setenv(settings.CALL_CHECK_S.variable, "5")  # a busy machine's driver may be late to tell of its calls
        with Cluster(num_nodes=1, log_to_driver=False) as cluster:
            yield cluster


@pytest.fixture
def group(cluster: Cluster) -> Iterator[Any]:
    group = Busy.create_group().launch(cluster, placement=NodePlacementStrategy([0] * 3), name="busy")
    yield group.wait_ready()
    group.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("begun", "end"):
        os.mkfifo(tmp_path / name)
    return tmp_path


def begin(call: Any, folder: Path) -> Any:
    """Return the call's handle once its method runs."""
    handle = call(str(folder))
    (folder / "begun").read_bytes()
    return handle


def ask(cluster: Cluster) -> Any:
    return cluster._client.request(operations.Inspect([], ["activities"]))


def reports(answer: dict[str, Any]) -> dict[str, ProcessReport]:
    found = [from_data(ProcessReport, process) for process in answer["processes"]]
    return {report.name if report.role != "driver" else f"driver {report.pid}": report for report in found}


def inspect(cluster: Cluster) -> dict[str, ProcessReport]:
    begun = time.monotonic()
    found = reports(ask(cluster).wait())
    assert time.monotonic() - begun < TIMEOUT_S + 1.5
    return found


def stop(pid: int) -> None:
    """Wait until the kernel has stopped a process."""
    os.kill(pid, signal.SIGSTOP)
    while not is_stopped(pid):
        time.sleep(0.01)


def test_ranks_report_themselves_or_are_reported_from_outside(cluster: Cluster, group: Any, folder: Path) -> None:
    (pid,) = group.execute_on(2).pid().wait()
    stop(pid)
    idle = group.execute_on(2).idle()
    holding = begin(group.execute_on(1).hold, folder)
    sleeping = begin(group.execute_on(0).sleep, folder)
    cluster.status()  # the daemon knows of calls past it from now on
    for _ in range(10):  # both have begun, and sleep and hold in a moment; the driver reports its calls a moment later
        found = inspect(cluster)
        asleep = ActivityState.SLEEPING in [activity.state for activity in found["busy:0"].activities]
        if asleep and found["busy:0"].calls and not found["busy:1"].answered:
            break
    sleeper, holder, stopped, driver = (found[name] for name in ("busy:0", "busy:1", "busy:2", f"driver {os.getpid()}"))

    assert (sleeper.answered, sleeper.trouble) == (True, "")
    (main,) = [activity for activity in sleeper.activities if activity.method == "sleep"]
    assert main.state == ActivityState.SLEEPING
    assert main.line is not None
    assert main.line.startswith(f"{__file__}:")
    assert [call.method for call in sleeper.calls] == ["sleep"]

    assert (holder.answered, holder.trouble) == (False, "does not answer")
    (main,) = [activity for activity in holder.activities if activity.name == "thread MainThread"]
    assert (main.stack[-1].file, main.stack[-1].function) == (__file__, "hold")
    assert [call.method for call in holder.calls] == ["hold"]

    assert (stopped.answered, stopped.trouble, stopped.activities) == (False, "stopped (T)", [])
    assert [call.method for call in stopped.calls] == ["idle"]
    assert (driver.answered, driver.trouble) == (True, "")

    os.kill(pid, signal.SIGCONT)
    (folder / "end").write_bytes(b"x")
    assert idle.wait() == [2]
    assert holding.wait() == [1]  # the signal has not disturbed it
    assert sleeping.wait() == [None]
    assert not any(report.trouble for report in inspect(cluster).values())


def test_a_rank_that_has_ended_is_reported_as_such(cluster: Cluster, group: Any, folder: Path) -> None:
    pid = inspect(cluster)["busy:1"].pid
    holding = begin(group.execute_on(1).hold, folder)
    asked = ask(cluster)
    os.kill(pid, signal.SIGKILL)
    answer = asked.wait()  # it had been asked
    for found in (reports(answer), inspect(cluster)):
        dead = found["busy:1"]
        assert (dead.trouble, dead.answered) == ("ended: was killed by SIGKILL", False)
        assert (dead.activities, dead.calls) == ([], [])
        assert not found["busy:0"].trouble
    assert list(answer["ended"].values()) == ["was killed by SIGKILL"]
    with pytest.raises(WorkerDied):
        holding.wait()


def test_a_driver_whose_loop_is_blocked_answers_by_another_thread(cluster: Cluster, group: Any) -> None:
    environment = {**os.environ, "RLINF_NODE_SOCKET": f"{node_directory(cluster)}/node.sock"}
    with subprocess.Popen(
        [sys.executable, "-c", dedent(DRIVER)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as blocked:
        assert blocked.stdout is not None
        blocked.stdout.readline()
        found = inspect(cluster)
        driver = found[f"driver {blocked.pid}"]
        assert (driver.answered, driver.trouble) == (True, LOOP_BLOCKED)
        (main,) = [activity for activity in driver.activities if activity.blocks]
        assert [frame.function for frame in main.stack] == ["main", "block"]
        assert (main.state, main.line) == (ActivityState.RUNNING, "<string>:7 in block()")
        assert main.wait is not None
        assert main.wait.what.endswith("a pipe")
        assert [report.trouble for report in found.values() if report is not driver] == [""] * 4
        blocked.communicate(b"\n")
    assert f"driver {blocked.pid}" not in inspect(cluster)
