"""Reports of runs at random, by seed: three workers and two, whose waits go anywhere."""

from __future__ import annotations

import dataclasses
import random

from rlinf_async._inspection.state.run_report import (
    Activity,
    ActivityState,
    OpenCall,
    ProcessReport,
    QueueReport,
    RunReport,
    Target,
    TargetKind,
    Wait,
)

SIZES = {"a": 3, "b": 2}
WORKERS = {
    2 + place: member for place, member in enumerate((group, rank) for group in SIZES for rank in range(SIZES[group]))
}
"""Group and rank by endpoint."""
DRIVER = 1
GONE = 99
NAMES = ("thread MainThread", "task 1", "task 2")
STATES = (*[ActivityState.WAITING] * 8, ActivityState.RUNNING, ActivityState.SLEEPING, ActivityState.IDLE)
TROUBLES = (*[""] * 12, "stopped (T)", "does not answer", "ended: exit code 1")


class RandomReport:
    """The maker of one report; the same seed makes the same."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lively = self._random.random() < 0.4
        """Whether anything may run: most of what is random would run somewhere."""

    def make(self) -> RunReport:
        pick = self._random.choice
        processes = [self._process(endpoint) for endpoint in (DRIVER, *WORKERS)]
        queues = [
            QueueReport(pick((1, 2, 3)), "c", 0, pick((0, 2)), 8, 2, pick((True, False)), [2, GONE], [1], [1, 2])
            for _ in range(pick((0, 1, 2)))
        ]
        ended = {GONE: "exit code 1"} if pick((True, False, False)) else {}
        return RunReport(
            "r", processes, queues, {"n1": "no answer"} if self._lively and pick((True, False)) else {}, ended
        )

    def _process(self, endpoint: int) -> ProcessReport:
        group, rank = WORKERS.get(endpoint, ("", -1))
        role = "worker" if group else "driver"
        trouble = self._random.choice(TROUBLES)
        names = self._random.sample(NAMES, self._random.choice((0, 1, 1, 2, 3)))
        activities = [self._activity(endpoint, name) for name in names]
        calls = {
            (each.source, each.number): OpenCall(each.source, each.number, each.method, 9.0)
            for each in activities
            if each.method
        }
        if group and self._random.random() < 0.3:
            call = OpenCall(self._endpoint(), self._number(), "step", self._random.choice((0.5, 9.0)))
            calls[call.source, call.number] = call
        process = ProcessReport(endpoint, role, f"{group}:{rank}", group, rank, 0, "n", endpoint, trouble, not trouble)
        return dataclasses.replace(process, calls=list(calls.values()), activities=activities)

    def _activity(self, endpoint: int, name: str) -> Activity:
        pick = self._random.choice
        state = pick(STATES) if self._lively else ActivityState.WAITING
        served = (self._endpoint(), self._number(), "step") if endpoint in WORKERS and pick((1, 1, 0)) else (0, 0, "")
        source, number, method = served
        if state is not ActivityState.WAITING:
            return Activity(name, state, None, method, source, number)
        awaits = [pick(NAMES)] if pick((True, False, False)) else []
        return Activity(name, state, None, method, source, number, self._wait(endpoint), awaits)

    def _wait(self, endpoint: int) -> Wait | None:
        pick = self._random.choice
        age = pick((0.0, 9.0, 9.0, 9.0, 1.0))
        if endpoint in WORKERS and pick((True, False, False)):
            return self._collective(*WORKERS[endpoint], age)
        kind = pick(("call", "send", "recv", "put", "get"))
        targets = [self._target() for _ in range(pick((0, 1, 1, 1, 2, 3)))]
        left = 9.0 if self._lively and pick((True, False, False)) else None
        return Wait(kind, kind, age, targets, pick((True, True, False)), left) if targets or self._lively else None

    def _collective(self, group: str, rank: int, age: float) -> Wait:
        kind = self._random.choice(("all_reduce", "broadcast", "send", "recv"))
        others = [each for each in range(SIZES[group]) if each != rank]
        if kind in ("send", "recv"):
            others = [self._random.choice(others)]
        name = f"{kind}#{self._random.choice('001')}"
        return Wait(kind, kind, age, [Target(TargetKind.COLLECTIVE, number=each, name=name) for each in others])

    def _target(self) -> Target:
        kind = self._random.choice(
            (TargetKind.CALL, TargetKind.CALL, TargetKind.MESSAGE, TargetKind.QUEUE, TargetKind.LOCK, TargetKind.LOCAL,
             TargetKind.NAME, TargetKind.WEIGHTS)
        )  # fmt: skip
        if kind is TargetKind.QUEUE:
            return Target(kind, 0, self._number(), "c")
        if kind is TargetKind.LOCAL:
            return Target(kind, name=self._random.choice(("", *NAMES)))
        if kind in (TargetKind.NAME, TargetKind.WEIGHTS):
            return Target(kind, name="m")
        return Target(kind, self._endpoint(), self._number() if kind is TargetKind.CALL else 0)

    def _endpoint(self) -> int:
        return self._random.choice((DRIVER, *WORKERS, *WORKERS, GONE))

    def _number(self) -> int:
        return self._random.choice((1, 2, 3))
