"""Finds waiters and their lines of user code by examining the stacks of tasks and threads.

Nothing is recorded in advance: a stack is examined only when a warning about a long wait is logged, or on request.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType, MethodType
from typing import Any, Final

from rlinf_async._core import clock
from rlinf_async._core.framework_files import is_framework

_STDLIB: Final = sysconfig.get_path("stdlib") + os.sep
# Subfolders of the standard library's folder that hold installed packages.
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

# Interpreter types that stand between a coroutine and the awaited object, and do not expose the object.
_WRAPPERS: Final = frozenset(
    {"async_generator_asend", "async_generator_athrow", "anext_awaitable", "coroutine_wrapper"}
)

_TASKS: Final = str(asyncio.tasks.__file__)
# Maps functions of asyncio to the local variables that hold their timers.
_TIMERS: Final = {"sleep": "h", "_wait": "timeout_handle", "wait_for": "timeout_handle"}

_MAX_AWAITERS: Final = 32  # maximum length of a followed chain of tasks that await each other


@dataclass(frozen=True)
class Waiter:
    """A waiting task or thread.

    Attributes:
        line: innermost line of user code on its stack, ``train.py:12 in main()`` with the full path.
        internal: true if its stack has only framework code.
    """

    name: str
    line: str | None
    internal: bool


def waiter_in_thread(ident: int) -> Waiter:
    name = next((thread.name for thread in threading.enumerate() if thread.ident == ident), str(ident))
    frame = sys._current_frames().get(ident)
    while frame is not None:
        if _is_users(frame):
            return Waiter(f"thread {name}", _line_of(frame), False)
        frame = frame.f_back
    return Waiter(f"thread {name}", None, True)


def waiter_for(future: asyncio.Future[Any]) -> Waiter:
    """Return the task that awaits a future; if it runs no user code, the line comes from a task that awaits it."""
    first = task = awaiter_of(future)
    internal = False
    for _ in range(_MAX_AWAITERS):
        if task is None or first is None:
            break
        users = [frame for frame in frames_of(task) if _is_users(frame)]
        if users:
            return Waiter(f"task {first.get_name()}", _line_of(users[-1]), False)
        # A task that runs a bare operation, as in ``gather(work)``, belongs to the task that awaits it.
        internal = internal or not hasattr(task.get_coro(), "_drivers")
        task = awaiter_of(task)
    return Waiter("an unknown task" if first is None else f"task {first.get_name()}", None, internal)


def futures_of(task: asyncio.Task[Any]) -> Iterator[asyncio.Future[Any]]:
    waiting = [getattr(task, "_fut_waiter", None)]
    for _ in range(_MAX_AWAITERS):
        if not waiting:
            return
        future = waiting.pop()
        if future is None or future.done():
            continue
        waiting += getattr(future, "_children", ())
        if isinstance(future, asyncio.Task):
            waiting.append(getattr(future, "_fut_waiter", None))
        else:
            yield future


def awaiter_of(future: asyncio.Future[Any] | None) -> asyncio.Task[Any] | None:
    """Return the task that resumes after a future, found through ``gather``, ``shield``, ``wait`` or ``TaskGroup``."""
    for _ in range(_MAX_AWAITERS):
        following = None
        for callback, *_ in getattr(future, "_callbacks", None) or ():
            owner = getattr(callback, "__self__", None)
            if isinstance(owner, asyncio.Task):
                return owner
            if isinstance(owner, asyncio.TaskGroup):
                return getattr(owner, "_parent_task", None)
            following = next((value for value in bound_to(callback) if isinstance(value, asyncio.Future)), following)
        if following is None or following is future:
            return None
        future = following
    return None


def bound_to(callback: Any) -> list[Any]:
    """Return the values bound to a callback, in its function's closure or as arguments of a partial call."""
    found = list(getattr(callback, "args", ()))
    for cell in getattr(callback, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # the cell is empty
            found.append(cell.cell_contents)
    return found


def frames_of(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    return (frame for _, frame in suspended(task))


def time_left(task: asyncio.Task[Any]) -> float | None:
    """Return the seconds until a timer ends a suspended task's current await; None if it has no timer."""
    return min((max(0.0, when - clock.monotonic()) for when in _deadlines_of(task)), default=None)


def _deadlines_of(task: asyncio.Task[Any]) -> Iterator[float]:
    """Yield the deadlines of ``sleep``, ``wait``, ``wait_for`` and ``timeout``, by the loops' monotonic clock."""
    for awaitable, frame in suspended(task):
        if frame.f_code.co_filename == _TASKS and (name := _TIMERS.get(frame.f_code.co_name)):
            timer: Any = frame.f_locals.get(name)  # None, or the loop's own kind of timer handle
            with contextlib.suppress(AttributeError):
                yield timer.when()
        # The interpreter keeps the exit method of an open ``async with`` on the frame's value stack, without a name.
        for held in gc.get_referents(awaitable):
            manager = getattr(held, "__self__", held) if isinstance(held, MethodType | asyncio.Timeout) else None
            if isinstance(manager, asyncio.Timeout) and (when := manager.when()) is not None:
                yield when


def suspended(task: asyncio.Task[Any]) -> Iterator[tuple[Any, FrameType]]:
    awaitable: Any = task.get_coro()
    while awaitable is not None:
        current = awaitable
        if isinstance(awaitable, CoroutineType):
            frame, awaitable = awaitable.cr_frame, awaitable.cr_await
        elif isinstance(awaitable, GeneratorType):
            frame, awaitable = awaitable.gi_frame, awaitable.gi_yieldfrom
        elif isinstance(awaitable, AsyncGeneratorType):
            frame, awaitable = awaitable.ag_frame, awaitable.ag_await
        else:
            frame, awaitable = None, _wrapped(awaitable, task)
        if frame is not None:
            yield current, frame


def _wrapped(awaitable: Any, task: asyncio.Task[Any]) -> Any:
    """Return the inner part of an async generator's step, a coroutine's awaitable, or an operation run as a task."""
    drivers = getattr(awaitable, "_drivers", None)
    if isinstance(drivers, dict):
        return drivers.get(task)
    if type(awaitable).__name__ not in _WRAPPERS:  # another type's object may refer to its awaiter instead
        return None
    inner = (CoroutineType, GeneratorType, AsyncGeneratorType)
    return next((found for found in gc.get_referents(awaitable) if isinstance(found, inner)), None)


def _is_users(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    if path.startswith("<frozen") or is_framework(path):
        return False
    return not path.startswith(_STDLIB) or any(folder in path for folder in _INSTALLED)


def _line_of(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}()"
