"""Tasks of this process: those of all its loops, and what each of them awaits."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
import weakref
from asyncio import base_futures, locks, queues, taskgroups, tasks
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, TypeVar

from rlinf_async._inspection.code_frames import Code, code_of
from rlinf_async._waits import slow_waits
from rlinf_async._waits.user_code import awaiter_of, bound_to, frames_of, time_left

_TASKS: Final = str(tasks.__file__)
_GROUPS: Final = str(taskgroups.__file__)
_LOCKS: Final = (str(locks.__file__), str(queues.__file__))
_FOLDER: Final = str(base_futures.__file__).rpartition("/")[0]

_REGISTRIES: Final = ("_all_tasks", "_scheduled_tasks", "_eager_tasks")
"""Sets of asyncio's, of one version of Python or another, with the tasks of all loops."""

_MAX_TRIES: Final = 1000
"""Of copying such a set while other threads change it; as many as asyncio makes."""

_MAX_DEPTH: Final = 32
"""Of tasks that wait for each other."""

Task = asyncio.Task[Any]
T = TypeVar("T")

_inherited: weakref.WeakSet[Task] = weakref.WeakSet()
"""In a forked process: copies of its parent's, which no loop here will ever run."""


@dataclass
class Awaited:
    """What a suspended task awaits.

    Attributes:
        tasks: that have to end.
        futures: of other threads, or of processes.
        row: the wait of the table's, if it is one.
        kind, primitive: of asyncio's, that the user's code waits at: ``event`` and ``asyncio.Event.wait()``.
        token: lives as long as the await.
        sleeps: it waits for a timer.
        is_known: nothing else can end the await.
        every: all of it has to end; False: a part of it is enough.
        left: seconds until a timer ends the await anyhow.
    """

    tasks: list[Task] = field(default_factory=list)
    futures: list[concurrent.futures.Future[Any]] = field(default_factory=list)
    row: slow_waits.Row | None = None
    kind: str = ""
    primitive: str = ""
    token: Any = 0
    sleeps: bool = False
    is_known: bool = True
    every: bool = True
    left: float | None = None


def all_tasks() -> list[Task]:
    """The unfinished tasks of all loops of this process; from any thread."""
    found = dict.fromkeys(task for registry in _registries() for task in _copy(registry))
    if sys.version_info >= (3, 14):  # there each thread has a list of its own, and those sets are for foreign tasks
        for loop, _ in slow_waits.loops():
            found.update(dict.fromkeys(asyncio.all_tasks(loop)))
    return [task for task in found if not (task.done() or is_inherited(task))]


def is_inherited(task: Task) -> bool:
    """Whether it is a copy of a task of the process that this one was forked from."""
    return task in _inherited


def _registries() -> Iterator[Iterable[Task]]:
    return filter(None, (getattr(tasks, name, None) for name in _REGISTRIES))


def _copy(registry: Iterable[T]) -> list[T]:
    for _ in range(_MAX_TRIES):
        try:
            return list(registry)
        except RuntimeError:  # it has changed meanwhile
            continue
    return []


def awaited_by(task: Task) -> Awaited:
    """What a task awaits that is not running."""
    frames = list(frames_of(task))
    futures, every = _innermost(task, frames)
    found = Awaited(every=every, left=_left(task), token=getattr(task, "_fut_waiter", None) or 0)
    for future in futures:
        _unfold(future, found)
    if frames and frames[-1].f_code.co_filename == _TASKS and frames[-1].f_code.co_name == "sleep":
        found.sleeps, found.is_known = True, True
    elif not found.is_known and not (found.tasks or found.row):
        found.kind, found.primitive = _primitive(frames)
        found.is_known = bool(found.primitive)
    return found


def _innermost(task: Task, frames: list[FrameType]) -> tuple[list[Any], bool]:
    """The futures that the innermost function of a task awaits, and whether it awaits all of them.

    Functions of asyncio put a future of their own in between, and keep in their variables what that stands for.
    """
    future: Any = getattr(task, "_fut_waiter", None)
    if frames and future is not None:
        code, variables = frames[-1].f_code, frames[-1].f_locals
        if code.co_filename == _TASKS and code.co_name == "_wait":
            return [each for each in list(variables["fs"]) if not each.done()], (
                variables["return_when"] == asyncio.ALL_COMPLETED
            )
        if code.co_filename == _TASKS and code.co_name == "wait_for" and variables.get("timeout_handle") is not None:
            return [variables["fut"]], True
        if code.co_filename == _GROUPS and code.co_name in ("__aexit__", "_aexit"):
            return list(variables["self"]._tasks), True
    return [future], True


def _unfold(first: Any, found: Awaited) -> None:
    """Notes what a future stands for: a task, all of a gathering, what is shielded, the work of another thread."""
    waiting = [first]
    while waiting:
        future = waiting.pop()
        if future is None or future.done():
            continue
        if isinstance(future, asyncio.Task):
            found.tasks.append(future)
        elif (row := slow_waits.row_of(future)) is not None:
            found.row = row
        elif children := getattr(future, "_children", ()):
            waiting += reversed(children)
        elif behind := list(_behind(future)):
            for each in behind:
                if isinstance(each, concurrent.futures.Future):
                    found.futures.append(each)
                else:
                    waiting.append(each)
        else:
            found.is_known = False


def _behind(future: Any) -> Iterator[Any]:
    """What ends a future that only passes an outcome on: the inner one of ``shield``, or one of another thread's."""
    for callback, *_ in list(getattr(future, "_callbacks", None) or ()):
        if getattr(callback, "__name__", "") in ("_outer_done_callback", "_call_check_cancel"):
            yield from (
                value
                for value in bound_to(callback)
                if isinstance(value, asyncio.Future | concurrent.futures.Future) and value is not future
            )


def passed_on(task: Task) -> Iterator[concurrent.futures.Future[Any]]:
    """The futures of other threads that end with a task: of ``run_coroutine_threadsafe``."""
    for callback, *_ in list(getattr(task, "_callbacks", None) or ()):
        yield from (value for value in bound_to(callback) if isinstance(value, concurrent.futures.Future))


def handed_over(loop: asyncio.AbstractEventLoop | None) -> Iterator[concurrent.futures.Future[Any]]:
    """Futures of ``run_coroutine_threadsafe`` of which a loop has made no task yet; only loops of asyncio tell them."""
    for handle in _copy(getattr(loop, "_ready", ())):
        yield from (value for value in bound_to(handle._callback) if isinstance(value, concurrent.futures.Future))


def above(task: Task) -> Iterator[Task]:
    """The task itself, the one that awaits it or that has made it in a group, and so on."""
    seen: Task | None = task
    for _ in range(_MAX_DEPTH):
        if seen is None:
            return
        yield seen
        seen = awaiter_of(seen)


def _left(task: Task) -> float | None:
    """Whoever awaits it with a deadline cancels it then."""
    return min((left for each in above(task) if (left := time_left(each)) is not None), default=None)


def _primitive(frames: list[FrameType]) -> tuple[str, str]:
    """The lock, event or queue of asyncio's at which the user's own code waits: its kind, and in words.

    Where a package waits at one, what ends that may be a socket's callback, of which nothing here can tell.
    """
    if not frames or frames[-1].f_code.co_filename not in _LOCKS:
        return "", ""
    caller = next((frame for frame in reversed(frames) if not frame.f_code.co_filename.startswith(_FOLDER)), None)
    if caller is not None and code_of(caller.f_code.co_filename) is not Code.USERS:
        return "", ""
    method, owner = frames[-1].f_code.co_name, type(frames[-1].f_locals.get("self")).__name__
    return "lock" if method == "acquire" else owner.lower(), f"asyncio.{owner}.{method}()"


def _leave_to_parent() -> None:
    for registry in _registries():
        _inherited.update(_copy(registry))


os.register_at_fork(after_in_child=_leave_to_parent)
