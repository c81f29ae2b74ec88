"""States of single tasks and threads: what a suspended task awaits, and the call in which a running one blocks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from rlinf_async._core import clock
from rlinf_async._core.wait_table import FOREVER
from rlinf_async._inspection.code_frames import has_users, line_of
from rlinf_async._inspection.own_collectives import collective_wait
from rlinf_async._inspection.own_tasks import Awaited, Task, awaited_by, passed_on
from rlinf_async._inspection.own_threads import Doing, doing
from rlinf_async._inspection.served_calls import ServedCall
from rlinf_async._inspection.state.run_report import ActivityState, Target, TargetKind, Wait
from rlinf_async._inspection.wait_ages import WaitAges
from rlinf_async._waits import slow_waits
from rlinf_async._waits.user_code import frames_of

Key = Any  # a task or a thread's id


@dataclass
class Observation:
    """The observed state of a task or thread.

    Attributes:
        frames: its stack, outermost frame first.
        age: age of its state or wait in seconds; None if unknown.
        is_users: True if reports include it even when no reported activity waits for it.
        awaits, one_of: other tasks and threads; it waits for all of ``awaits``, or for one of ``one_of``.
        loop_thread: thread that must run the task; None unless the task may continue by itself.
        blocks: True if it blocks the event loop of its thread.
        is_row: True if its wait is a row of the table of waits.
    """

    key: Key
    name: str
    frames: Sequence[FrameType]
    is_users: bool
    state: ActivityState = ActivityState.RUNNING
    wait: Wait | None = None
    age: float | None = None
    awaits: list[Key] = field(default_factory=list)
    one_of: list[Key] = field(default_factory=list)
    call: ServedCall | None = None
    loop_thread: int | None = None
    blocks: bool = False
    is_row: bool = False


class States:
    """Finds the states of all tasks and threads; ``stacks`` maps thread ids to frames, outermost first."""

    def __init__(
        self,
        tasks: Sequence[Task],
        stacks: Mapping[int, Sequence[FrameType]],
        threads: Mapping[int, threading.Thread],
        ages: WaitAges,
    ) -> None:
        self._stacks = stacks
        self._threads = threads
        self._ages = ages
        self._rows = slow_waits.rows_of_threads()
        self._names: dict[str, Key] = {}
        # Maps each future of another thread to the task or thread that completes it.
        self._carriers: dict[Any, Key] = {future: task for task in tasks for future in passed_on(task)}
        self._carriers |= _work_items(stacks)

    def carry(self, future: concurrent.futures.Future[Any], key: Key) -> None:
        """Record that a task or thread must continue before a future of another thread can complete."""
        self._carriers.setdefault(future, key)

    def name_of(self, key: Key) -> str:
        if isinstance(key, asyncio.Task):
            name, number = f"task {key.get_name()}", id(key)
        else:
            name, number = f"thread {self._threads[key].name if key in self._threads else key}", key
        return name if self._names.setdefault(name, key) is key else f"{name} ({number:#x})"

    # -- suspended tasks ----------------------------------------------------------------------------------------

    def suspended(self, task: Task) -> Observation:
        frames = list(frames_of(task))
        seen = Observation(task, self.name_of(task), frames, has_users(frames))
        awaited = awaited_by(task)
        carriers = [self._carriers.get(future) for future in awaited.futures]
        awaits = [*awaited.tasks, *(each for each in carriers if each is not None)]
        if awaited.row is not None:
            seen.state, seen.is_row = ActivityState.WAITING, True
            seen.wait = _of_row(awaited.row, awaited.left)
        elif awaited.primitive:
            self._wait_here(seen, awaited.kind, awaited.primitive, awaited.token, awaited.left)
        elif awaited.sleeps:
            self._wait_here(seen, "sleep", "asyncio.sleep()", awaited.token, awaited.left)
        elif awaits and not awaited.every:
            if awaited.is_known and None not in carriers:
                self._wait_for_one(seen, awaits, awaited)
        elif awaits:
            seen.state, seen.awaits = ActivityState.WAITING, awaits
            if awaited.left is not None:
                self._wait_here(seen, "tasks", f"the end of {len(awaits)} tasks", awaited.token, awaited.left)
                seen.wait = dataclasses.replace(seen.wait, targets=[]) if seen.wait is not None else None
        if awaited.left is not None and (awaited.sleeps or seen.wait is None):
            seen.state = ActivityState.SLEEPING
        return seen

    def _wait_for_one(self, seen: Observation, awaits: Sequence[Key], awaited: Awaited) -> None:
        targets = [Target(TargetKind.LOCAL, name=name) for name in sorted(map(self.name_of, awaits))]
        what = f"the first of {len(targets)} tasks"
        self._wait_here(seen, "tasks", what, awaited.token, awaited.left)
        assert seen.wait is not None
        seen.wait = dataclasses.replace(seen.wait, targets=targets, every=False)
        seen.one_of = list(awaits)

    # -- running activities ---------------------------------------------------------------------------

    def running(self, key: Key, ident: int, frames: Sequence[FrameType]) -> Observation:
        seen = Observation(key, self.name_of(key), frames, has_users(frames))
        if (row := self._rows.get(ident)) is not None:
            seen.state, seen.wait, seen.is_row = ActivityState.WAITING, _of_row(row, None), True
            return seen
        if (collective := collective_wait(frames)) is not None:
            place = [(id(frame), frame.f_lasti) for frame in frames]
            seen.age = self._ages.age((seen.name, collective.what), hash(tuple(place)))
            seen.state, seen.wait = ActivityState.WAITING, dataclasses.replace(collective, age=seen.age or 0.0)
            return seen
        does = doing(frames, self._native_id(ident))
        seen.state, seen.age = does.state, does.age
        if does.state is ActivityState.WAITING and not self._wait_for_carrier(seen, does):
            self._wait_here(seen, does.kind, does.what, does.sleeps, None)
        elif does.state is ActivityState.RUNNING and does.kind:
            seen.age = self._ages.age((seen.name, does.what, line_of(frames)), does.sleeps)
            seen.wait = Wait(does.kind, does.what, seen.age or 0.0, [])
        return seen

    def _native_id(self, ident: int) -> int | None:
        """Return the kernel's thread id. After a fork, Python 3.11 keeps the parent's id for the main thread."""
        if ident == threading.main_thread().ident:
            return os.getpid()
        return self._threads[ident].native_id if ident in self._threads else None

    def _wait_for_carrier(self, seen: Observation, does: Doing) -> bool:
        """True if the wait is for another thread or task, even one that is not visible in this process."""
        if does.future is not None:
            seen.awaits = [self._carriers[does.future]] if does.future in self._carriers else []
        elif does.thread is not None:
            seen.awaits = [does.thread.ident] if does.thread.ident in self._stacks else []
        elif does.ends:
            own = threading.main_thread().ident
            seen.awaits = [ident for ident, each in self._threads.items() if not each.daemon and ident != own]
            seen.is_users = True
        else:
            return False
        if not seen.awaits:
            # Another process may complete the future, or the future may just have completed.
            seen.state = ActivityState.RUNNING
        return True

    # -- waits --------------------------------------------------------------------------------------------------

    def _wait_here(self, seen: Observation, kind: str, what: str, token: Any, left: float | None) -> None:
        seen.state = ActivityState.WAITING
        seen.age = self._ages.age((seen.name, what, line_of(seen.frames)), token)
        targets = [] if kind == "sleep" else [Target(TargetKind.LOCAL)]
        seen.wait = Wait(kind, what, seen.age or 0.0, targets, True, left)

    def wait_for_caller(self, seen: Observation, call: ServedCall) -> None:
        seen.age = self._ages.age((seen.name, call.source, call.number), call.number)
        what = f"its caller to take items of {call.method}()"
        taken = Target(TargetKind.MESSAGE, call.source)
        seen.state, seen.awaits = ActivityState.WAITING, []
        seen.wait = Wait("stream", what, seen.age or 0.0, [taken])


def _of_row(row: slow_waits.Row, left: float | None) -> Wait:
    work, now = row.work, clock.monotonic()
    limits = (left, work._time_left(), None if row.until == FOREVER else max(0.0, row.until - now))
    targets, every = work._needs()
    least = min((limit for limit in limits if limit is not None), default=None)
    return Wait(work._kind, work._describe(), now - row.since, targets, every, least)


def _work_items(stacks: Mapping[int, Sequence[FrameType]]) -> dict[Any, Key]:
    found: dict[Any, Key] = {}
    for ident, frames in stacks.items():
        for frame in frames:
            if frame.f_code.co_name == "run" and frame.f_globals.get("__name__") == "concurrent.futures.thread":
                found[getattr(frame.f_locals.get("self"), "future", None)] = ident
    return found
