"""Reports of runs that never were: processes, calls and waits put down one by one, and the same half a second later."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from rlinf_async._inspection.state.run_report import (
    Activity,
    ActivityState,
    Frame,
    OpenCall,
    ProcessReport,
    QueueReport,
    RunReport,
    Target,
    TargetKind,
    Wait,
)
from rlinf_async._inspection.state.verdict import Verdict, judge

MAIN = "thread MainThread"
DRIVER = "driver"


class MadeRun:
    """A driver and groups of workers, idle at first.

    Args:
        groups: sizes, by name.
    """

    def __init__(self, **groups: int) -> None:
        numbers = itertools.count(2)
        self.processes = {DRIVER: ProcessReport(1, "driver", "driver", "", -1, 0, "n0", 100)}
        for group, size in groups.items():
            for rank in range(size):
                endpoint = next(numbers)
                name = f"{group}:{rank}"
                self.processes[name] = ProcessReport(endpoint, "worker", name, group, rank, 0, "n0", 100 + endpoint)
        self.queues: list[QueueReport] = []
        self.missing: dict[str, str] = {}
        self.ended: dict[int, str] = {}
        self._numbers = itertools.count(1)

    def endpoint(self, name: str) -> int:
        return self.processes[name].endpoint

    def change(self, name: str, **fields: Any) -> None:
        self.processes[name] = dataclasses.replace(self.processes[name], **fields)

    # -- activities ---------------------------------------------------------------------------------------------

    def does(
        self,
        name: str,
        state: ActivityState,
        wait: Wait | None = None,
        *,
        serves: tuple[int, int, str] | None = None,
        task: str = MAIN,
        awaits: Sequence[str] = (),
        line: str | None = "/x/run.py:7 in main()",
        age: float | None = None,
        stack: Sequence[Frame] = (),
        blocks: bool = False,
    ) -> None:
        """Adds an activity; ``serves`` is a call's source, number and method."""
        source, number, method = serves or (0, 0, "")
        activity = Activity(
            task, state, age, method, source, number, wait, list(awaits), line, list(stack), blocks
        )  # fmt: skip
        self.change(name, activities=[*self.processes[name].activities, activity])

    def call(
        self, source: str, method: str, *names: str, age: float = 10.0, asked: int | None = None
    ) -> tuple[Wait, tuple[int, int, str]]:
        """A call to workers that they owe an answer to: the caller's wait, and what they serve."""
        number = next(self._numbers)
        serves = (self.endpoint(source), number, method)
        for name in names:
            call = OpenCall(serves[0], number, method, age)
            self.change(name, calls=[*self.processes[name].calls, call])
        group = self.processes[names[0]].group
        size = asked or len(names)
        what = f"{group}.{method}() on {size} rank{'s' if size > 1 else ''}"
        targets = [Target(TargetKind.CALL, self.endpoint(name), number) for name in names]
        return Wait("call", what, age, targets), serves

    def driver_calls(self, method: str, *names: str, asked: int | None = None) -> tuple[int, int, str]:
        """The driver waits for a call, and that is all it does."""
        wait, serves = self.call(DRIVER, method, *names, asked=asked)
        self.does(DRIVER, ActivityState.WAITING, wait, task=f"task {method}")
        return serves

    def message(self, kind: str, peer: str, what: str = "", age: float = 9.0, left: float | None = None) -> Wait:
        direction = "to" if kind == "send" else "from"
        target = Target(TargetKind.MESSAGE, self.endpoint(peer))
        return Wait(kind, what or f"{kind}() {direction} {peer}", age, [target], left=left)

    # -- reports ------------------------------------------------------------------------------------------------

    def report(self) -> RunReport:
        return RunReport("run", list(self.processes.values()), self.queues, self.missing, self.ended)

    def verdict(self, working: Sequence[int] = ()) -> Verdict:
        """Of two reports that show the same, but that some processes have worked meanwhile."""
        report = self.report()
        after = aged(report)
        processes = [
            dataclasses.replace(each, cpu=each.cpu + 0.2 * (each.endpoint in working) + 0.01)
            for each in after.processes
        ]
        return judge(dataclasses.replace(after, processes=processes), report)


def get(number: int = 7, name: str = "episodes", kind: str = "get", age: float = 8.0) -> Wait:
    return Wait(kind, f"{kind} of channel '{name}'", age, [Target(TargetKind.QUEUE, number=number, name=name)], False)


def collective(kind: str, ranks: Sequence[int], group: str = "0") -> Wait:
    """The wait of a rank for these others."""
    targets = [Target(TargetKind.COLLECTIVE, number=rank, name=f"{kind}#{group}") for rank in ranks]
    return Wait(kind, f"{kind} of process group {group}", 0.0, targets)


def local(what: str = "asyncio.Semaphore") -> Wait:
    return Wait("lock", what, 0.0, [Target(TargetKind.LOCAL)])


def weights(what: str, model: str = "policy") -> Wait:
    return Wait("weights", what, 12.0, [Target(TargetKind.WEIGHTS, name=model)])


def aged(report: RunReport, seconds: float = 0.6) -> RunReport:
    """The same, later: known ages have grown."""
    return dataclasses.replace(report, processes=[_aged_process(each, seconds) for each in report.processes])


def _aged_process(process: ProcessReport, seconds: float) -> ProcessReport:
    return dataclasses.replace(
        process,
        calls=[dataclasses.replace(call, age=call.age + seconds) for call in process.calls],
        activities=[_aged(activity, seconds) for activity in process.activities],
    )


def _aged(activity: Activity, seconds: float) -> Activity:
    wait = activity.wait
    if wait is not None and wait.age:
        left = None if wait.left is None else wait.left - seconds
        wait = dataclasses.replace(wait, age=wait.age + seconds, left=left)
    return dataclasses.replace(activity, age=None if activity.age is None else activity.age + seconds, wait=wait)
