"""Finds the states of this process's threads from blocking functions in their innermost frames and system calls."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import _base
from dataclasses import dataclass, replace
from itertools import takewhile
from types import FrameType
from typing import Any, Final

from rlinf_async._inspection.code_frames import Code, called_by, code_of
from rlinf_async._inspection.state.run_report import ActivityState
from rlinf_async._inspection.system_calls import system_call_of

# Time at which the main thread had finished and began to wait for other threads.
_exit_began: float | None = None

_THREADING: Final = threading.__file__
_QUEUE: Final = queue.__file__
_FUTURES: Final = _base.__file__


@dataclass(frozen=True)
class Doing:
    """The state of a thread, with the seconds spent in it, if known.

    Attributes:
        kind, what: kind and description of the wait; a wait for something outside the process counts as running.
        sleeps: number of times that the thread has gone to sleep since it started.
        future: awaited future, which a thread or task of this process, or another process, must complete.
        ends: True if it waits for all non-daemon threads to exit.
    """

    state: ActivityState
    kind: str = ""
    what: str = ""
    sleeps: int = 0
    thread: threading.Thread | None = None
    future: concurrent.futures.Future[Any] | None = None
    ends: bool = False
    age: float | None = None


def doing(frames: Sequence[FrameType], native_id: int | None) -> Doing:
    """Return the state of a thread that has no row in the table of waits; its frames are given outermost first."""
    call = system_call_of(native_id)
    if call.name in ("nanosleep", "clock_nanosleep"):
        return Doing(ActivityState.SLEEPING)
    if call.name != "futex" or not frames:
        return Doing(ActivityState.RUNNING, *call.outside, sleeps=_sleeps(native_id))
    if call.is_shared:
        return Doing(
            ActivityState.RUNNING, "lock", "a lock that it shares with other processes", sleeps=_sleeps(native_id)
        )
    # A thread may also be in a futex call for other reasons: to wait for the GIL, which this thread holds, or for a
    # library's compute threads. So it counts as waiting only if it acquires one of Python's own locks without a
    # deadline: with a deadline, it continues by itself, and attempts to get the GIL are repeated every few
    # milliseconds.
    # tests/_inspection/test_own_threads.py::test_a_thread_that_computes_is_running_though_this_one_has_the_interpreter
    waits = _wait_of(frames)
    if waits is None:
        return Doing(ActivityState.RUNNING)
    if call.is_timed:
        return Doing(ActivityState.SLEEPING)
    # A signal may wake the main thread, and its handler may set the event.
    is_outside = waits.kind == "event" and native_id == os.getpid() and _has_signal_handlers()
    return replace(waits, sleeps=_sleeps(native_id), state=ActivityState.RUNNING if is_outside else waits.state)


def _wait_of(frames: Sequence[FrameType]) -> Doing | None:
    files = (_THREADING, _QUEUE, _FUTURES)
    inside = list(takewhile(lambda frame: frame.f_code.co_filename in files, reversed(frames)))[::-1]
    if frames[0].f_code.co_filename == _THREADING and frames[0].f_code.co_name == "_shutdown":
        age = None if _exit_began is None else time.monotonic() - _exit_began
        return Doing(ActivityState.WAITING, "thread", "the ends of all threads that are no daemons", ends=True, age=age)
    if not inside:
        return Doing(ActivityState.WAITING, "lock", "a lock") if called_by(frames[-1]) in ("acquire", "with") else None
    for frame in inside:
        name, owner = frame.f_code.co_name, frame.f_locals.get("self")
        if name == "join" and isinstance(owner, threading.Thread):
            return Doing(ActivityState.WAITING, "thread", f"the end of thread {owner.name}", thread=owner)
        if isinstance(owner, concurrent.futures.Future):
            return Doing(ActivityState.WAITING, "future", "a concurrent.futures.Future", future=owner)
    outermost = inside[0]
    before = frames[: len(frames) - len(inside)]
    if not before or code_of(before[-1].f_code.co_filename) is not Code.USERS:
        return None  # library code is waiting, for work, its own processes or a device
    if (owner := outermost.f_locals.get("self")) is None:
        return None  # concurrent.futures.wait(): another process may complete the futures
    kind, method = type(owner).__name__, outermost.f_code.co_name
    what = f"{outermost.f_globals['__name__']}.{kind}.{method}()"
    return Doing(ActivityState.WAITING, "lock" if method == "acquire" else kind.lower(), what)


def _note_exit() -> None:
    global _exit_began
    _exit_began = time.monotonic()


# Register a hook that runs before the interpreter waits for threads, because atexit functions run only afterwards. If
# the hook is missing, or is registered during the exit, the age stays unknown.
with contextlib.suppress(AttributeError, RuntimeError):
    threading._register_atexit(_note_exit)  # type: ignore[attr-defined]


def _has_signal_handlers() -> bool:
    """True if the user or a package has a signal handler. asyncio's own handlers do not count: they call the loop."""
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        code = getattr(getattr(handler, "func", handler), "__code__", None)
        if callable(handler) and code is not None and code_of(code.co_filename) is not Code.OTHERS:
            return True
    return False


def _sleeps(native_id: int | None) -> int:
    with contextlib.suppress(OSError, StopIteration), open(f"/proc/self/task/{native_id}/status", "rb") as file:
        line = next(line for line in file if line.startswith(b"voluntary_ctxt_switches"))
        return int(line.split()[1])
    return 0
