"""Reports of a daemon's processes: ones that answer, lie, stop, end or are silent, with recording connections."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async import settings
from rlinf_async._core import frames, operations
from rlinf_async._inspection.state.run_report import (
    LOOP_BLOCKED,
    Activity,
    ActivityState,
    Frame,
    LeftDriver,
    OpenCall,
    ProcessReport,
    QueueReport,
    Target,
    TargetKind,
    Wait,
    from_data,
    to_data,
)
from rlinf_async._wire.socket_writer import MAX_FRAME_BYTES
from rlinf_launcher.daemon import inspection, stack_reader
from rlinf_launcher.daemon.channels import Channels
from rlinf_launcher.daemon.endpoint import Endpoint
from rlinf_launcher.daemon.handlers import Requester
from rlinf_launcher.daemon.inspection import Inspection
from rlinf_launcher.daemon.router import Router
from tests._support.silent_processes import RecordingConnection, silent

OPERATOR = Requester(frames.endpoint(3, 1), 1)
WAIT = Wait("recv", "a message from a:1", 7.5, [Target(TargetKind.MESSAGE, 2)], left=3.0)
ACTIVITY = Activity(
    "task 1", ActivityState.WAITING, 7.5, "step", 1, 4, WAIT, [], "t.py:3 in f()", [Frame("t.py", 3, "f", True)]
)


class Daemon:
    """The parts of a daemon that an inspection needs, without a node."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.gone: set[int] = set()
        self.router = Router(loop, 2, lambda source, ask, operation, arguments: None)
        self.channels = Channels(loop, self.router, self.gone, 1 << 30)
        self.in_debugger: dict[int, str] = {}
        self.inspection = Inspection(loop, self.router, "n2", self.channels, self.gone, self.in_debugger)

    def driver(self, pid: int | None = None) -> Endpoint:
        endpoint = self.router.new_endpoint("driver")
        endpoint.pid = os.getpid() if pid is None else pid
        endpoint.connection = RecordingConnection()  # type: ignore[assignment]
        endpoint.note_hello({})
        return endpoint

    def worker(self, rank: int, pid: int | None = None) -> Endpoint:
        endpoint = self.driver()
        setup = SimpleNamespace(group="rollout", rank=rank, name=f"rollout:{rank}")
        pid = os.getpid() if pid is None else pid
        endpoint.process = SimpleNamespace(pid=pid, setup=setup, image=None, exit_status=None)  # type: ignore[assignment]
        return endpoint

    async def inspect(self, *parts: str, numbers: list[int] | None = None) -> dict[str, Any]:
        return await self.inspection.inspect(OPERATOR, operations.Inspect(numbers or [], list(parts)))

    def ask(self, *parts: str) -> asyncio.Task[dict[str, Any]]:
        return asyncio.create_task(self.inspect(*parts))

    async def tell(self, endpoint: Endpoint, activities: Any, turn: int = 0) -> None:
        """Answers the last question that the process was asked."""
        operation = operations.Inspected(turn or rounds_of(endpoint)[-1], activities)
        await self.inspection.inspected(Requester(endpoint.id, 1), operation)

    def end(self, endpoint: Endpoint, verdict: str = "") -> None:
        if verdict:
            self.router.fail_pending_calls(endpoint, {"verdict": verdict}, expected=False)
        else:
            self.router.endpoints.pop(endpoint.number)
        self.gone.add(endpoint.id)
        self.inspection.drop(endpoint.id)


@pytest.fixture
async def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent processes are given up soon."""
    monkeypatch.setenv(settings.INSPECTION_TIMEOUT_S.variable, "0.1")
    monkeypatch.setattr(stack_reader, "TIMEOUT_S", 0.2)


def rounds_of(endpoint: Endpoint) -> list[int]:
    """The rounds in which a process was asked."""
    events = [frame for frame in endpoint.connection.frames if frame[4] == "inspect"]  # type: ignore[union-attr]
    return [event[5]["round"] for event in events]


def reports(answer: dict[str, Any]) -> list[ProcessReport]:
    return [from_data(ProcessReport, frames.unpack(frames.pack(process))) for process in answer["processes"]]


async def test_what_processes_tell_stands_in_their_reports(daemon: Daemon) -> None:
    driver, worker = daemon.driver(), daemon.worker(3)
    asked = daemon.ask("activities")
    await asyncio.sleep(0)
    await daemon.tell(driver, [])
    await daemon.tell(worker, [to_data(ACTIVITY), to_data(ACTIVITY)])
    # All three are this process, which may have children of tests before.
    first, second = (replace(report, children=[]) for report in reports(await asked))
    pid = os.getpid()
    assert 0.0 < first.cpu <= second.cpu <= time.process_time() + 1.0
    assert first == ProcessReport(driver.id, "driver", "driver", "", -1, 2, "n2", pid, cpu=first.cpu)
    assert second == ProcessReport(
        worker.id, "worker", "rollout:3", "rollout", 3, 2, "n2", pid, activities=[ACTIVITY, ACTIVITY], cpu=second.cpu
    )


async def test_a_subprocess_is_named_below_its_worker(daemon: Daemon) -> None:
    below = daemon.driver()
    below.root, below.name = daemon.worker(3), "rollout:3:1"
    report, _ = reports(await daemon.inspect())
    assert (report.role, report.name, report.group, report.rank) == ("subprocess", "rollout:3:1", "rollout:3", 1)


async def test_without_activities_no_process_is_asked(daemon: Daemon) -> None:
    worker = daemon.worker(0)
    worker.pending_calls.add(7, 1, 0, "step", time.monotonic() - 2)
    worker.pending_calls.add(8, 4, 0, "load", time.monotonic() - 1)
    (report,) = reports(await daemon.inspect())
    assert rounds_of(worker) == []
    assert [call.age for call in report.calls] == pytest.approx([2, 1], abs=0.5)
    assert [(call.source, call.number, call.method) for call in report.calls] == [(7, 1, "step"), (8, 4, "load")]
    assert (report.activities, report.answered, report.trouble) == ([], False, "")


async def test_only_processes_of_the_run_are_told_and_asked(daemon: Daemon) -> None:
    operator, stranger, worker = daemon.driver(), daemon.router.new_endpoint("driver"), daemon.worker(0)
    operator.role = "operator"
    stranger.connection = RecordingConnection()  # type: ignore[assignment]
    asked = daemon.ask("activities")
    await asyncio.sleep(0)
    await daemon.tell(worker, [])
    assert [report.endpoint for report in reports(await asked)] == [worker.id]
    assert rounds_of(operator) == rounds_of(stranger) == []


async def test_numbers_choose_processes_and_what_became_of_the_others_is_told(daemon: Daemon) -> None:
    left, right, dead, gone = (daemon.worker(rank) for rank in range(4))
    daemon.end(dead, "exited with code 1")
    daemon.end(gone)
    answer = await daemon.inspect(numbers=[right.number, dead.number, gone.number, 99, right.number])
    assert [(report.name, report.trouble) for report in reports(answer)] == [
        ("rollout:1", ""),
        ("rollout:2", "ended: exited with code 1"),
    ]
    assert answer["ended"] == {
        dead.id: "exited with code 1",
        gone.id: "left the run",
        frames.endpoint(2, 99): "is not of this run",
    }
    assert [report.endpoint for report in reports(await daemon.inspect())] == [left.id, right.id, dead.id]


async def test_unknown_parts_are_refused(daemon: Daemon) -> None:
    with pytest.raises(ValueError, match="parts are activities and oldest and queues, got waits"):
        await daemon.inspect("activities", "waits")


@pytest.mark.parametrize(
    "nonsense",
    [
        [1],
        ["thread"],
        [None],
        [[]],
        [{}],
        [{"name": "t"}],
        [{"name": "t", "state": "flying"}],
        [{"name": "t", "state": "waiting", "wait": 1}],
        [{"name": "t", "state": "waiting", "wait": {"kind": "recv"}}],
        [{"name": "t", "state": "waiting", "stack": 5}],
        [{"name": "t", "state": "waiting", "stack": [{"file": "f", "line": "x", "function": "f"}]}],
        [{"name": "t", "state": "waiting", "number": 1e300}],
        [{"name": "t", "state": "waiting", "number": float("nan")}],
        [{"name": "t", "state": "waiting", "number": float("inf")}],
        [to_data(ACTIVITY), 2],
    ],
)
async def test_an_answer_that_makes_no_sense_is_told_as_such(daemon: Daemon, nonsense: list[Any]) -> None:
    worker, honest = daemon.worker(0), daemon.worker(1)
    asked = daemon.ask("activities")
    await asyncio.sleep(0)
    await daemon.tell(worker, nonsense)
    await daemon.tell(honest, [to_data(ACTIVITY)])
    first, second = reports(await asked)
    assert first.trouble.startswith("its answer makes no sense (")
    assert (first.answered, first.activities) == (False, [])
    assert (second.trouble, second.activities) == ("", [ACTIVITY])


async def test_only_what_is_known_of_an_activity_is_passed_on(daemon: Daemon) -> None:
    worker = daemon.worker(0)
    asked = daemon.ask("activities")
    await asyncio.sleep(0)
    await daemon.tell(worker, [{"name": "t", "state": "running", "secret": [1] * 100}])
    (process,) = (await asked)["processes"]
    assert process["activities"] == [to_data(Activity("t", ActivityState.RUNNING))]


async def test_answers_to_rounds_that_have_not_asked_a_process_are_ignored(daemon: Daemon) -> None:
    first = daemon.worker(0)
    early = daemon.ask("activities")
    await asyncio.sleep(0)
    second = daemon.worker(1)
    late = daemon.ask("activities")
    await asyncio.sleep(0)
    (one, two), (only,) = rounds_of(first), rounds_of(second)
    assert two == only != one
    await daemon.tell(second, [to_data(ACTIVITY)], one)  # it was not asked in that round
    await daemon.tell(second, [to_data(ACTIVITY)], 99)
    await daemon.inspection.inspected(OPERATOR, operations.Inspected(one, []))
    assert not early.done()
    await daemon.tell(first, [], one)
    assert [report.activities for report in reports(await early)] == [[]]
    await daemon.tell(first, [to_data(ACTIVITY)], two)
    await daemon.tell(first, [], two)  # it has answered
    await daemon.tell(second, [], two)
    assert [report.activities for report in reports(await late)] == [[ACTIVITY], []]
    await daemon.tell(second, [], two)  # that round is over
    assert "[0 rounds" in repr(daemon.inspection)


@pytest.mark.parametrize(("verdict", "how"), [("was killed by SIGKILL", "was killed by SIGKILL"), ("", "left the run")])
async def test_a_process_that_ends_while_it_is_asked_is_reported_at_once(
    daemon: Daemon, verdict: str, how: str
) -> None:
    worker, other = daemon.worker(0), daemon.worker(1)
    worker.pending_calls.add(7, 1, 0, "step", time.monotonic())
    asked = daemon.ask("activities")
    await asyncio.sleep(0)
    (turn,) = rounds_of(worker)
    daemon.end(worker, verdict)
    await daemon.tell(worker, [to_data(ACTIVITY)], turn)  # its last words
    began = time.monotonic()
    await daemon.tell(other, [])
    answer = await asked
    assert time.monotonic() - began < settings.INSPECTION_TIMEOUT_S() / 2
    report, _ = reports(answer)
    assert (report.trouble, report.answered, report.activities, report.calls) == (f"ended: {how}", False, [], [])
    assert answer["ended"] == {worker.id: how}


async def test_how_a_process_has_ended_of_whose_end_only_the_kernel_knows_is_awaited(daemon: Daemon) -> None:
    with silent(daemon.router) as dead:
        signal.pidfd_send_signal(dead.pidfd, signal.SIGKILL)
        os.waitid(os.P_PIDFD, dead.pidfd, os.WEXITED | os.WNOWAIT)
        (report,) = reports(answer := await daemon.inspect())
        assert report.trouble == answer["ended"][dead.id] == "ended (Z)"
        asked = daemon.ask("activities")
        await asyncio.sleep(0)
        daemon.end(dead, "was killed by SIGKILL")
        (report,) = reports(answer := await asked)
        assert report.trouble == "ended: was killed by SIGKILL"
        assert answer["ended"] == {dead.id: "was killed by SIGKILL"}


@pytest.mark.usefixtures("short")
async def test_a_process_of_whose_end_only_the_kernel_knows_is_not_awaited_for_ever(daemon: Daemon) -> None:
    with silent(daemon.router) as dead:
        signal.pidfd_send_signal(dead.pidfd, signal.SIGKILL)
        os.waitid(os.P_PIDFD, dead.pidfd, os.WEXITED | os.WNOWAIT)
        (report,) = reports(await daemon.inspect("activities"))
        assert (report.trouble, report.answered, report.activities) == ("ended (Z)", False, [])


async def test_open_calls_are_those_at_the_moment_of_the_answer(daemon: Daemon) -> None:
    early, late = daemon.worker(0), daemon.worker(1)
    early.pending_calls.add(7, 1, 0, "step", time.monotonic())
    asked = daemon.ask("activities")
    await asyncio.sleep(0)
    await daemon.tell(early, [to_data(ACTIVITY)])
    early.pending_calls.complete(7, 1)
    early.pending_calls.add(7, 2, 0, "load", time.monotonic())
    await daemon.tell(late, [])
    first, second = reports(await asked)
    assert [call.method for call in first.calls] == ["step"]
    assert second.calls == []


async def test_a_worker_that_is_being_started_is_not_asked(daemon: Daemon) -> None:
    starting, silent_yet = daemon.worker(0, pid=0), daemon.worker(1)
    starting.is_known = silent_yet.is_known = False
    assert [report.trouble for report in reports(await daemon.inspect("activities"))] == ["is being started"] * 2
    assert rounds_of(starting) == rounds_of(silent_yet) == []


@pytest.mark.usefixtures("short")
async def test_a_stopped_process_is_neither_asked_nor_signalled(daemon: Daemon) -> None:
    with silent(daemon.router) as stopped:
        signal.pidfd_send_signal(stopped.pidfd, signal.SIGSTOP)
        os.waitid(os.P_PIDFD, stopped.pidfd, os.WSTOPPED)
        (report,) = reports(await daemon.inspect("activities"))
        assert (report.trouble, report.answered, report.activities) == ("stopped (T)", False, [])
        assert rounds_of(stopped) == []
        (report,) = reports(await daemon.inspect())
        assert report.trouble == "stopped (T)"


@pytest.mark.usefixtures("short")
async def test_a_process_that_is_stopped_while_it_is_asked_is_told_as_such(daemon: Daemon) -> None:
    with silent(daemon.router) as stopped:
        asked = daemon.ask("activities")
        await asyncio.sleep(0)
        signal.pidfd_send_signal(stopped.pidfd, signal.SIGSTOP)
        os.waitid(os.P_PIDFD, stopped.pidfd, os.WSTOPPED)
        (report,) = reports(await asked)
        assert (report.trouble, report.activities) == ("stopped (T)", [])


@pytest.mark.usefixtures("short")
async def test_silent_processes_are_told_with_their_stacks_all_within_one_time(daemon: Daemon) -> None:
    deaf = "signal.pthread_sigmask(signal.SIG_BLOCK, [SIGNAL]); hold()"
    program = "def collect():\n    threading.Event().wait()\nthreading.Thread(target=collect).start(); hold()"
    with silent(daemon.router, deaf) as first, silent(daemon.router, program), silent(daemon.router, deaf):
        daemon.worker(3)
        first.pending_calls.add(7, 1, 0, "step", time.monotonic())
        began = time.monotonic()
        one, other = await asyncio.gather(daemon.inspect("activities"), daemon.inspect("activities"))
        assert time.monotonic() - began < 1.0
        for answer in (one, other):
            *found, without_pipe = reports(answer)
            assert [report.trouble for report in found] == [
                "does not answer: its stacks do not come either",
                "does not answer",
                "does not answer: its stacks do not come either",
            ]
            assert without_pipe.trouble == "does not answer: it has no pipe for its stacks"
            assert not any(report.answered for report in (*found, without_pipe))
            assert len(found[0].calls) == 1
            waiting, main = found[1].activities
            assert waiting.state == ActivityState.WAITING
            assert (main.name, main.state, main.line) == (
                "thread MainThread",
                ActivityState.RUNNING,
                "<string>:15 in hold()",
            )


@pytest.mark.usefixtures("short")
async def test_an_answer_that_comes_while_the_stacks_are_read_counts(daemon: Daemon) -> None:
    with silent(daemon.router) as late:
        asked = daemon.ask("activities")
        async with asyncio.timeout(5):
            while "[1 dumps" not in repr(daemon.inspection):
                await asyncio.sleep(0.01)
        await daemon.tell(late, [to_data(ACTIVITY)])
        (report,) = reports(await asked)
        assert (report.trouble, report.answered, report.activities) == ("", True, [ACTIVITY])


@pytest.mark.usefixtures("short")
async def test_a_driver_whose_loop_is_blocked_is_woken_and_answers_all_that_ask(daemon: Daemon) -> None:
    driver = daemon.driver()
    reader, writer = os.pipe()
    try:
        driver.note_hello({"witness": writer})
        asked = [daemon.ask("activities") for _ in range(2)]
        woken = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(reader, lambda: woken.done() or woken.set_result(os.read(reader, 1)))
        async with asyncio.timeout(5):
            await woken
        await daemon.inspection.inspected(
            Requester(driver.id, 1), operations.Inspected(operations.ALL_ROUNDS, [to_data(ACTIVITY)])
        )
        for answer in asked:
            (report,) = reports(await answer)
            assert (report.trouble, report.answered, report.activities) == (LOOP_BLOCKED, True, [ACTIVITY])
        asyncio.get_running_loop().remove_reader(reader)
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.usefixtures("short")
async def test_a_descriptor_that_is_no_pipe_is_not_written_to(daemon: Daemon, tmp_path: Path) -> None:
    driver = daemon.driver()
    with open(tmp_path / "users", "wb") as users:
        driver.note_hello({"witness": users.fileno()})
        (report,) = reports(await daemon.inspect("activities"))
    assert (report.answered, report.trouble) == (False, "does not answer: it has no pipe for its stacks")
    assert (tmp_path / "users").read_bytes() == b""


@pytest.mark.usefixtures("short")
async def test_a_descriptor_that_is_closed_is_not_waited_for(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_WITNESS_S", 60.0)
    driver = daemon.driver()
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    driver.note_hello({"witness": writer})
    async with asyncio.timeout(10):
        (report,) = reports(await daemon.inspect("activities"))
    assert (report.answered, report.trouble) == (False, "does not answer: it has no pipe for its stacks")


@pytest.mark.usefixtures("short")
async def test_a_silent_process_that_ends_is_reported_as_ended(daemon: Daemon) -> None:
    with silent(daemon.router) as silent_one:
        asked = daemon.ask("activities")
        async with asyncio.timeout(5):
            while "[1 dumps" not in repr(daemon.inspection):
                await asyncio.sleep(0.01)
        daemon.end(silent_one)
        (report,) = reports(await asked)
        assert (report.trouble, report.activities) == ("ended: left the run", [])


async def test_what_does_not_fit_into_one_frame_loses_its_stacks_first(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    talkative, quiet = daemon.worker(0), daemon.worker(1)

    async def told() -> list[ProcessReport]:
        asked = daemon.ask("activities")
        await asyncio.sleep(0)
        await daemon.tell(talkative, [to_data(ACTIVITY)] * 100)
        await daemon.tell(quiet, [to_data(ACTIVITY)])
        return reports(await asked)

    size = len(frames.pack([to_data(ACTIVITY)] * 101))
    assert [len(report.activities[-1].stack) for report in await told()] == [1, 1]
    monkeypatch.setattr(inspection, "_MAX_TOLD_BYTES", size * 9 // 10)
    first, second = await told()
    assert [len(each.stack) for each in first.activities] == [0] * 100
    assert second.activities == [ACTIVITY]
    monkeypatch.setattr(inspection, "_MAX_TOLD_BYTES", size // 10)
    first, second = await told()
    assert (first.activities, first.answered) == ([], False)
    assert first.trouble == "has 100 tasks and threads, too many to tell"
    assert len(second.activities) == 1


async def test_a_report_of_many_open_calls_fits_into_one_frame_with_the_oldest_of_them(daemon: Daemon) -> None:
    worker = daemon.worker(0)
    for number in range(100_000):
        worker.pending_calls.add(7, number, 0, f"method_{number % 10}", time.monotonic())
    asked = daemon.ask("activities")
    await asyncio.sleep(0)
    await daemon.tell(worker, [to_data(replace(ACTIVITY, name="x" * 1_000_000)) for _ in range(5)])
    answer = await asked
    assert len(frames.pack(answer)) < MAX_FRAME_BYTES - 1000
    (report,) = reports(answer)
    assert (report.owed, [call.number for call in report.calls[:2]], len(report.activities)) == (100_000, [0, 1], 5)
    (report,) = reports(await daemon.inspect("oldest"))
    assert (report.owed, [call.number for call in report.calls]) == (100_000, [0, 1, 2, 3, 4])


async def test_a_driver_that_has_left_is_told_until_it_ends_or_comes_back(daemon: Daemon) -> None:
    with silent(daemon.router) as driver:
        daemon.inspection.note_left(driver)
        assert (await daemon.inspect())["left"] == []  # it is here
        daemon.inspection.note_left(driver)
        del daemon.router.endpoints[driver.number]
        (left,) = (from_data(LeftDriver, each) for each in (await daemon.inspect())["left"])
        assert (left.pid, left.node_name) == (driver.pid, "n2")
        assert 0 <= left.age < 10
        driver.send_signal(signal.SIGKILL)
        os.waitid(os.P_PIDFD, driver.pidfd, os.WEXITED | os.WNOWAIT)
        assert (await daemon.inspect())["left"] == []


async def test_queues_are_told_where_they_are_wanted(daemon: Daemon) -> None:
    put = operations.HostChannel(5, "samples", 3, 0)
    await daemon.channels.host_channel(OPERATOR, put)
    assert (await daemon.inspect())["queues"] == []
    (queue,) = (await daemon.inspect("queues"))["queues"]
    assert from_data(QueueReport, queue) == QueueReport(5, "samples", 2, 0, 0, 3, False, [], [], [])


async def test_calls_are_told_as_reports_have_them(daemon: Daemon) -> None:
    worker = daemon.worker(0)
    worker.pending_calls.add(7, 1, 0, "step", 0.0)
    (process,) = (await daemon.inspect())["processes"]
    assert process["calls"] == [to_data(OpenCall(7, 1, "step", process["calls"][0]["age"]))]
