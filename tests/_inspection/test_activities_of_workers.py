"""Activities that drivers and workers of a real run tell their daemons."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlinf_async import Cluster, Handle, NodePlacementStrategy
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
        group: Any = Waiting.create_group().launch(cluster, NodePlacementStrategy([0] * 3), name="waiting")
        pair: Any = Waiting.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="pair")
        group.here().wait()
        pair.here().wait()
        begun = [
            group.execute_on(CALLEE).wait(),
            group.execute_on(1).call("waiting", CALLEE),
            group.execute_on(2).receive("waiting", CALLEE),
            group.execute_on(2).receive_soon("pair", 0),
            pair.reduce(late=1),
        ]
        watcher = threading.Thread(target=watch, args=(begun[0],), name="watcher")
        watcher.start()
        yield settled(cluster)
        opened = group.open()
        for name, rank in (("waiting", 2), ("pair", 1)):
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
