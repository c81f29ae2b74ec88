"""States of this process's threads: what the innermost frames of one are known to block in, and its system call."""

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
from rlinf_async._inspection.state.run_report import State
from rlinf_async._inspection.system_calls import system_call_of

_exit_began: float | None = None
"""When the main thread has come to its end, and began to wait for the others."""

_THREADING: Final = threading.__file__
_QUEUE: Final = queue.__file__
_FUTURES: Final = _base.__file__


@dataclass(frozen=True)
class Doing:
    """What a thread does.

    Attributes:
        kind, what: of a wait, for the report; also of one for something outside, in which it counts as running.
        sleeps: how often it has gone to sleep in its life.
        thread: is waited for to end.
        future: is waited for; some thread or task of this process may carry it out, or another process.
        ends: all threads are waited for that are no daemons.
        age: seconds for which it does, where that is known.
    """

    state: State
    kind: str = ""
    what: str = ""
    sleeps: int = 0
    thread: threading.Thread | None = None
    future: concurrent.futures.Future[Any] | None = None
    ends: bool = False
    age: float | None = None


def doing(frames: Sequence[FrameType], native_id: int | None) -> Doing:
    """What a thread does that is in none of the table's waits.

    Args:
        frames: the outermost first.
        native_id: the thread's number in the kernel; None where it is not known.
    """
    call = system_call_of(native_id)
    if call.name in ("nanosleep", "clock_nanosleep"):
        return Doing(State.SLEEPING)
    if call.name != "futex" or not frames:
        return Doing(State.RUNNING, *call.outside, sleeps=_sleeps(native_id))
    if call.is_shared:
        return Doing(State.RUNNING, "lock", "a lock that it shares with other processes", sleeps=_sleeps(native_id))
    # A thread is in such a call for other reasons too: it waits for the interpreter's lock, which this thread holds, or
    # for the threads of a library that compute for it.  So it counts only where Python's own locks are being acquired,
    # and for ever: what has a deadline goes on by itself, and the interpreter's lock is tried every few milliseconds.
    # tests/_inspection/test_own_threads.py::test_a_thread_that_computes_is_running_though_this_one_has_the_interpreter
    waits = _wait_of(frames)
    if waits is None:
        return Doing(State.RUNNING)
    if call.is_timed:
        return Doing(State.SLEEPING)
    # The main thread may be woken by a signal, whose handler sets the event.
    is_outside = waits.kind == "event" and native_id == os.getpid() and _has_signal_handlers()
    return replace(waits, sleeps=_sleeps(native_id), state=State.RUNNING if is_outside else waits.state)


def _wait_of(frames: Sequence[FrameType]) -> Doing | None:
    """The wait in Python's own locks that the innermost frames are in; None where they are in none."""
    files = (_THREADING, _QUEUE, _FUTURES)
    inside = list(takewhile(lambda frame: frame.f_code.co_filename in files, reversed(frames)))[::-1]
    if frames[0].f_code.co_filename == _THREADING and frames[0].f_code.co_name == "_shutdown":
        age = None if _exit_began is None else time.monotonic() - _exit_began
        return Doing(State.WAITING, "thread", "the ends of all threads that are no daemons", ends=True, age=age)
    if not inside:
        return Doing(State.WAITING, "lock", "a lock") if called_by(frames[-1]) in ("acquire", "with") else None
    for frame in inside:
        name, owner = frame.f_code.co_name, frame.f_locals.get("self")
        if name == "join" and isinstance(owner, threading.Thread):
            return Doing(State.WAITING, "thread", f"the end of thread {owner.name}", thread=owner)
        if isinstance(owner, concurrent.futures.Future):
            return Doing(State.WAITING, "future", "a concurrent.futures.Future", future=owner)
    outermost = inside[0]
    before = frames[: len(frames) - len(inside)]
    if not before or code_of(before[-1].f_code.co_filename) is not Code.USERS:
        return None  # a package that waits for work, for its own processes or for a device
    if (owner := outermost.f_locals.get("self")) is None:
        return None  # concurrent.futures.wait(): the futures may be another process's
    kind, method = type(owner).__name__, outermost.f_code.co_name
    what = f"{outermost.f_globals['__name__']}.{kind}.{method}()"
    return Doing(State.WAITING, "lock" if method == "acquire" else kind.lower(), what)


def _note_exit() -> None:
    global _exit_began
    _exit_began = time.monotonic()


# Before the interpreter waits for threads, which ``atexit`` comes after.  Where it has no such place, or ends already,
# the age of its end is not known.
with contextlib.suppress(AttributeError, RuntimeError):
    threading._register_atexit(_note_exit)  # type: ignore[attr-defined]


def _has_signal_handlers() -> bool:
    """Whether the user, or a package, has a signal handled here.  Asyncio's own handlers only call back on its loop."""
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        code = getattr(getattr(handler, "func", handler), "__code__", None)
        if callable(handler) and code is not None and code_of(code.co_filename) is not Code.OTHERS:
            return True
    return False


def _sleeps(native_id: int | None) -> int:
    """How often a thread has gone to sleep; if that has not changed, it has not run."""
    with contextlib.suppress(OSError, StopIteration), open(f"/proc/self/task/{native_id}/status", "rb") as file:
        line = next(line for line in file if line.startswith(b"voluntary_ctxt_switches"))
        return int(line.split()[1])
    return 0
