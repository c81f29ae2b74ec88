"""The tasks of this process, on all loops, and the objects that they await."""

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

# Names of asyncio's sets of all loops' tasks, which depend on the Python version.
_REGISTRIES: Final = ("_all_tasks", "_scheduled_tasks", "_eager_tasks")

# Number of attempts to copy such a set while other threads change it, the same as in asyncio.
_MAX_TRIES: Final = 1000

_MAX_DEPTH: Final = 32

Task = asyncio.Task[Any]
T = TypeVar("T")

# Tasks of the parent process in a forked child, where no loop will ever run them.
_inherited: weakref.WeakSet[Task] = weakref.WeakSet()


@dataclass
class Awaited:
    """The objects that a suspended task awaits.

    Attributes:
        futures: awaited futures of other threads or processes.
        row: its row in the table of waits, if it is registered there.
        kind, primitive: kind and name of the asyncio primitive on which user code waits, such as ``event`` and
            ``asyncio.Event.wait()``.
        token: object that lives as long as the await.
        sleeps: True if it waits for a timer.
        is_known: True if only the objects above can end the await.
        every: True if all of the objects must complete; False if one suffices.
        left: seconds until a timer ends the await, if there is one.
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
    """Return the unfinished tasks of all loops of this process. Any thread may call this."""
    found = dict.fromkeys(task for registry in _registries() for task in _copy(registry))
    if sys.version_info >= (3, 14):
        # From Python 3.14 on, each thread has its own list, and the sets hold only third-party tasks.
        for loop, _ in slow_waits.loops():
            found.update(dict.fromkeys(asyncio.all_tasks(loop)))
    return [task for task in found if not (task.done() or is_inherited(task))]


def is_inherited(task: Task) -> bool:
    """True for a task of the process from which this process was forked."""
    return task in _inherited


def _registries() -> Iterator[Iterable[Task]]:
    return filter(None, (getattr(tasks, name, None) for name in _REGISTRIES))


def _copy(registry: Iterable[T]) -> list[T]:
    for _ in range(_MAX_TRIES):
        try:
            return list(registry)
        except RuntimeError:  # the set changed during the copy
            continue
    return []


def awaited_by(task: Task) -> Awaited:
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
    """Return the futures that a task awaits, except asyncio's internal ones, and True if it awaits all of them."""
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
    """Resolve a future to its origin: a task, members of a gather, a shielded future, or work of another thread."""
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
    """Yield the origins of a future that passes on an outcome: ``shield``'s inner future, another thread's future."""
    for callback, *_ in list(getattr(future, "_callbacks", None) or ()):
        if getattr(callback, "__name__", "") in ("_outer_done_callback", "_call_check_cancel"):
            yield from (
                value
                for value in bound_to(callback)
                if isinstance(value, asyncio.Future | concurrent.futures.Future) and value is not future
            )


def passed_on(task: Task) -> Iterator[concurrent.futures.Future[Any]]:
    """Yield other threads' futures that complete together with a task (``run_coroutine_threadsafe``)."""
    for callback, *_ in list(getattr(task, "_callbacks", None) or ()):
        yield from (value for value in bound_to(callback) if isinstance(value, concurrent.futures.Future))


def handed_over(loop: asyncio.AbstractEventLoop | None) -> Iterator[concurrent.futures.Future[Any]]:
    """Yield the futures of ``run_coroutine_threadsafe`` whose tasks an asyncio loop has not created yet."""
    for handle in _copy(getattr(loop, "_ready", ())):
        yield from (value for value in bound_to(handle._callback) if isinstance(value, concurrent.futures.Future))


def above(task: Task) -> Iterator[Task]:
    seen: Task | None = task
    for _ in range(_MAX_DEPTH):
        if seen is None:
            return
        yield seen
        seen = awaiter_of(seen)


def _left(task: Task) -> float | None:
    """Return the seconds until a deadline of the task, or of a task that awaits it, expires; None if there is none."""
    return min((left for each in above(task) if (left := time_left(each)) is not None), default=None)


def _primitive(frames: list[FrameType]) -> tuple[str, str]:
    """Return kind and name of the primitive on which user code waits; empty in a package, where I/O may end a wait."""
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
