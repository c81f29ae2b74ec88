"""Activities that drivers and workers of a real run tell their daemons."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlinf_async import Channel, Cluster, Handle, NodePlacementStrategy
from rlinf_async._core import operations
from rlinf_async._inspection.state.run_report import (
    Activity,
    ActivityState,
    ProcessReport,
    Target,
    TargetKind,
    from_data,
)
from tests._support.waiting_workers import Waiting

pytestmark = pytest.mark.shared_cluster

CALLEE = 0
"""The rank that others wait for."""

DRIVER = 1
"""The driver's endpoint: the first of its node."""

Run = dict[str, ProcessReport]
Fits = Callable[[Activity], bool]


def ask(cluster: Cluster) -> Run:
    answer = cluster._client.request(operations.Inspect([], ["activities"])).wait(10)
    reports = [from_data(ProcessReport, process) for process in answer["processes"]]
    return {report.name: report for report in reports}


def waits(report: ProcessReport) -> bool:
    return bool(report.activities) and not any(each.state is ActivityState.RUNNING for each in report.activities)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """One report of a run in which each rank waits for something else."""
    with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        group: Any = Waiting.create_group().launch(cluster, NodePlacementStrategy([0] * 10), name="waiting")
        pair: Any = Waiting.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="pair")
        channel = Channel.create("prompts")
        group.here().wait()
        pair.here().wait()
        numbers = iter(group.execute_on(9).count())
        begun = [
            group.execute_on(CALLEE).wait(),
            group.execute_on(1).call("waiting", CALLEE),
            group.execute_on(2).receive("waiting", CALLEE),
            group.execute_on(3).take(channel),
            group.execute_on(4).gather(),
            group.execute_on(5).receive("nobody", 0),
            group.execute_on(6).sleep(),
            group.execute_on(7).lock_twice(),
            group.execute_on(8).run_a_loop(),
            group.execute_on(2).receive_soon("pair", 0),
            pair.reduce(late=1),
        ]
        next(numbers)
        watcher = threading.Thread(target=watch, args=(begun[0],), name="watcher")
        watcher.start()
        yield settled(cluster)
        opened = group.open()
        channel.put("2 + 2")
        for name, rank in (("waiting", 2), ("waiting", 6), ("waiting", 7), ("waiting", 8), ("pair", 1)):
            group.execute_on(0).let_go(name, rank).wait()
        opened.wait()
        begun[-1].wait()
        watcher.join()
        for handle in begun:
            handle.cancel()


def watch(handle: Handle) -> None:
    handle.wait()


def settled(cluster: Cluster) -> Run:
    """A report in which all wait: threads are in the table only after a moment."""
    deadline = time.monotonic() + 10
    while True:
        run = ask(cluster)
        busy = [report for report in run.values() if report.role == "worker" and not waits(report)]
        if not busy:
            return run
        assert time.monotonic() < deadline, busy


def one(run: Run, name: str, fits: Fits = lambda activity: True) -> Activity:
    (found,) = (activity for activity in run[name].activities if fits(activity))
    return found


def endpoint(run: Run, name: str) -> int:
    return run[name].endpoint


def test_a_call_of_a_call_leads_to_the_task_that_serves_it(run: Run) -> None:
    caller = one(run, "waiting:1")
    assert (caller.method, caller.source) == ("call", DRIVER)
    assert caller.wait is not None
    assert caller.wait.kind == "call"
    (target,) = caller.wait.targets
    assert (target.kind, target.endpoint) == (TargetKind.CALL, endpoint(run, "waiting:0"))
    served = one(run, "waiting:0", lambda each: each.source == endpoint(run, "waiting:1"))
    assert (served.method, served.number) == ("wait", target.number)
    assert caller.line is not None
    assert caller.line.endswith("in Waiting.call()")


def test_an_event_is_waited_for_within_the_process(run: Run) -> None:
    served = one(run, "waiting:0", lambda each: each.source == DRIVER)
    assert served.wait is not None
    assert (served.wait.kind, served.wait.targets) == ("event", [Target(TargetKind.LOCAL)])
    assert served.stack[-1].function == "wait"
    assert [frame.users for frame in served.stack if frame.file.endswith("waiting_workers.py")] == [True]


def test_a_receive_waits_for_its_peer_and_one_with_a_timeout_says_how_long(run: Run) -> None:
    plain = one(run, "waiting:2", lambda each: each.method == "receive")
    assert plain.wait is not None
    assert (plain.wait.kind, plain.wait.left) == ("recv", None)
    assert plain.wait.targets == [Target(TargetKind.MESSAGE, endpoint(run, "waiting:0"))]
    limited = one(run, "waiting:2", lambda each: each.method == "receive_soon")
    assert limited.wait is not None
    assert limited.wait.targets == [Target(TargetKind.MESSAGE, endpoint(run, "pair:0"))]
    assert limited.wait.left is not None
    assert 40 < limited.wait.left < 60


def test_a_blocking_get_on_the_main_thread_waits_for_its_channel(run: Run) -> None:
    thread = one(run, "waiting:3")
    assert (thread.name, thread.method, thread.source) == ("thread MainThread", "take", DRIVER)
    assert thread.wait is not None
    assert (thread.wait.kind, thread.wait.every) == ("get", False)
    ((kind, number, name),) = ((each.kind, each.number, each.name) for each in thread.wait.targets)
    assert (kind, name) == (TargetKind.QUEUE, "prompts")
    assert number > 0


def test_subtasks_serve_the_call_that_gathers_them(run: Run) -> None:
    parent = one(run, "waiting:4", lambda each: len(each.awaits) == 2)
    children = {each.name: each for each in run["waiting:4"].activities}
    assert "task child" in parent.awaits
    assert {(each.method, each.source, each.number) for each in children.values()} == {
        ("gather", DRIVER, parent.number)
    }
    first = children["task child"].wait
    assert first is not None
    assert not first.every
    assert {children[target.name].state for target in first.targets} == {ActivityState.SLEEPING, ActivityState.WAITING}


def test_a_group_that_is_not_there_is_waited_for_by_its_name(run: Run) -> None:
    wait = one(run, "waiting:5").wait
    assert wait is not None
    assert wait.targets == [Target(TargetKind.NAME, name="nobody")]


def test_a_def_that_sleeps_goes_on_by_itself(run: Run) -> None:
    thread = one(run, "waiting:6")
    assert (thread.name, thread.method, thread.state) == ("thread MainThread", "sleep", ActivityState.SLEEPING)


def test_a_lock_is_released_by_another_thread(run: Run) -> None:
    thread = one(run, "waiting:7", lambda each: each.method == "lock_twice")
    assert thread.wait is not None
    assert (thread.method, thread.wait.kind, thread.wait.targets) == ("lock_twice", "lock", [Target(TargetKind.LOCAL)])


def test_a_def_that_runs_a_loop_waits_for_the_tasks_there(run: Run) -> None:
    thread = one(run, "waiting:8", lambda each: each.name == "thread MainThread")
    (main,) = thread.awaits
    activities = {each.name: each for each in run["waiting:8"].activities}
    assert str(activities[main].line).endswith("main()")
    assert {activities[name].state for name in activities[main].awaits} == {
        ActivityState.SLEEPING,
        ActivityState.WAITING,
    }
    assert {each.number for each in activities.values()} == {thread.number}


def test_a_generator_that_is_ahead_waits_for_its_caller(run: Run) -> None:
    task = one(run, "waiting:9")
    assert task.wait is not None
    assert (task.wait.kind, task.wait.targets) == ("stream", [Target(TargetKind.MESSAGE, DRIVER)])


def test_a_rank_in_a_collective_waits_for_those_that_have_not_come(run: Run) -> None:
    thread = one(run, "pair:0")
    assert thread.wait is not None
    assert (thread.method, thread.wait.kind) == ("reduce", "all_reduce")
    assert [(each.kind, each.number) for each in thread.wait.targets] == [(TargetKind.COLLECTIVE, 1)]
    assert thread.wait.targets[0].name.startswith("all_reduce#")
    assert [each.kind for each in getattr(one(run, "pair:1").wait, "targets", ())] == [TargetKind.MESSAGE]


def test_a_thread_of_the_driver_waits_for_a_call(run: Run) -> None:
    thread = one(run, "driver", lambda each: each.name == "thread watcher")
    assert thread.wait is not None
    assert [(each.kind, each.endpoint) for each in thread.wait.targets] == [
        (TargetKind.CALL, endpoint(run, "waiting:0"))
    ]
    assert thread.line is not None
    assert thread.line.endswith("in watch()")


def test_each_has_answered_itself(run: Run) -> None:
    assert {name: (each.answered, each.trouble) for name, each in run.items()} == dict.fromkeys(run, (True, ""))
