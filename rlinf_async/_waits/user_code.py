"""Finds who waits, and the user's file and line, from the stacks of tasks and threads.

Nothing is recorded while things run: a stack is looked at when a word about a long wait is said, or on request.
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
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
"""Below the standard library's folder, and not of it."""

_WRAPPERS: Final = frozenset(
    {"async_generator_asend", "async_generator_athrow", "anext_awaitable", "coroutine_wrapper"}
)
"""Types of the interpreter that stand between a coroutine and what it awaits, and do not tell what that is."""

_TASKS: Final = str(asyncio.tasks.__file__)
_TIMERS: Final = {"sleep": "h", "_wait": "timeout_handle", "wait_for": "timeout_handle"}
"""Of functions of asyncio, the variables with their timers."""

_MAX_AWAITERS: Final = 32
"""Tasks that wait for each other; beyond these none is looked for."""


@dataclass(frozen=True)
class Waiter:
    """A task or a thread that waits.

    Attributes:
        name: of the task or thread.
        line: the innermost line of the user's code on its stack, ``train.py:12 in main()`` with the full path.
        internal: none but the framework's own code is on its stack.
    """

    name: str
    line: str | None
    internal: bool


def waiter_in_thread(ident: int) -> Waiter:
    """The thread of that id."""
    name = next((thread.name for thread in threading.enumerate() if thread.ident == ident), str(ident))
    frame = sys._current_frames().get(ident)
    while frame is not None:
        if _is_users(frame):
            return Waiter(f"thread {name}", _line_of(frame), False)
        frame = frame.f_back
    return Waiter(f"thread {name}", None, True)


def waiter_for(future: asyncio.Future[Any]) -> Waiter:
    """The task that waits for a future; where it runs no code of the user's, the task that waits for that one."""
    first = task = awaiter_of(future)
    internal = False
    for _ in range(_MAX_AWAITERS):
        if task is None or first is None:
            break
        users = [frame for frame in frames_of(task) if _is_users(frame)]
        if users:
            return Waiter(f"task {first.get_name()}", _line_of(users[-1]), False)
        # A task that is nothing but an operation, ``gather(work)``, is whose task waits for it.
        internal = internal or not hasattr(task.get_coro(), "_drivers")
        task = awaiter_of(task)
    return Waiter("an unknown task" if first is None else f"task {first.get_name()}", None, internal)


def futures_of(task: asyncio.Task[Any]) -> Iterator[asyncio.Future[Any]]:
    """The futures that a task waits for, through the tasks and gatherings in between."""
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
    """The task that goes on when a future is done, through ``gather``, ``shield``, ``wait`` and ``TaskGroup``."""
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
    """The values that a callback brings along: of the variables around its function, or of a partial call."""
    found = list(getattr(callback, "args", ()))
    for cell in getattr(callback, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # nothing has been put there yet
            found.append(cell.cell_contents)
    return found


def frames_of(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    """The frames of a task that is suspended, the outermost first."""
    return (frame for _, frame in suspended(task))


def time_left(task: asyncio.Task[Any]) -> float | None:
    """Seconds until a timer ends the await that a suspended task is in; None where there is none."""
    return min((max(0.0, when - clock.monotonic()) for when in _deadlines_of(task)), default=None)


def _deadlines_of(task: asyncio.Task[Any]) -> Iterator[float]:
    """Of ``sleep``, ``wait``, ``wait_for`` and ``timeout``, by the clock of loops, which is the monotonic one."""
    for awaitable, frame in suspended(task):
        if frame.f_code.co_filename == _TASKS and (name := _TIMERS.get(frame.f_code.co_name)):
            timer: Any = frame.f_locals.get(name)  # None, or a handle of the loop's own kind
            with contextlib.suppress(AttributeError):
                yield timer.when()
        # The interpreter keeps the exit method of an open ``async with`` on the stack of the frame, which has no name.
        for held in gc.get_referents(awaitable):
            manager = getattr(held, "__self__", held) if isinstance(held, MethodType | asyncio.Timeout) else None
            if isinstance(manager, asyncio.Timeout) and (when := manager.when()) is not None:
                yield when


def suspended(task: asyncio.Task[Any]) -> Iterator[tuple[Any, FrameType]]:
    """The coroutines and generators that a suspended task consists of, with their frames, the outermost first."""
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
    """What a step of an async generator, the awaitable of a coroutine or an operation run as a task consists of."""
    drivers = getattr(awaitable, "_drivers", None)
    if isinstance(drivers, dict):
        return drivers.get(task)
    if type(awaitable).__name__ not in _WRAPPERS:  # what another object refers to may well be what awaits it
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
