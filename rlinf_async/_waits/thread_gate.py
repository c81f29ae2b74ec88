"""Blocks threads outside event loops: the ``Gate`` at which a thread waits, and checks whether it may block."""

from __future__ import annotations

import threading
import types
from asyncio import AbstractEventLoop, _get_running_loop as running_loop  # returns None if no loop runs
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

from rlinf_async._core import dialect
from rlinf_async._core.error_copy import copy_of

T = TypeVar("T")


class Gate(Protocol):
    """An object at which a single thread waits, and only once."""

    def open(self) -> None:
        """End the wait, or make a later wait return immediately. Any thread may call this."""

    def wait(self, seconds: float) -> bool:
        """Wait until the gate is opened. Return False if it is still closed after ``seconds``."""


class LockGate:
    """A gate for a thread that does nothing else while it waits."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        self._lock.release()

    def wait(self, seconds: float) -> bool:
        return self._lock.acquire(timeout=seconds)


class EndableWaits:
    """The blocking waits of one thread in a ``with`` block; any thread may ``end`` these waits with an error.

    Current and later waits in the block raise copies of the error.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gates: set[_EndableGate] = set()
        self._error: Exception | None = None
        self._make: Callable[[], Gate] = LockGate

    def __enter__(self) -> EndableWaits:
        self._make = _per_thread.make
        wait_at(lambda: _EndableGate(self, self._make()))
        _per_thread.endable = self
        return self

    def __exit__(self, *_: Any) -> None:
        _per_thread.endable = None
        wait_at(self._make)

    @types.coroutine
    def carry(self, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Await a coroutine whose steps may block, which RLinf's rules allow."""
        resume: Callable[[Any], Any] = coroutine.send
        value: Any = None
        while True:
            with self:
                try:
                    future = resume(value)
                except StopIteration as end:
                    result: T = end.value
                    return result
            try:
                resume, value = coroutine.send, (yield future)
            except BaseException as error:
                resume, value = coroutine.throw, error

    def check(self) -> None:
        if self._error is not None:
            raise copy_of(self._error)

    def end(self, error: Exception) -> None:
        # Set the error first: a wait registers its gate before it reads the error, so it either sees the error or is
        # woken.
        self._error = error
        with self._lock:
            gates = list(self._gates)
        for gate in gates:
            gate.wake()


class _EndableGate:
    """A gate that wraps another gate, and also ends with the error of its ``EndableWaits``."""

    def __init__(self, waits: EndableWaits, inner: Gate) -> None:
        self._waits = waits
        self._inner = inner
        self._is_open = self._is_awake = False

    def open(self) -> None:
        self._is_open = True
        self.wake()

    def wake(self) -> None:
        """Open the inner gate unless it is already open, because it may be opened only once."""
        with self._waits._lock:
            is_first, self._is_awake = not self._is_awake, True
        if is_first:
            self._inner.open()

    def wait(self, seconds: float) -> bool:
        waits = self._waits
        with waits._lock:
            waits._gates.add(self)
        try:
            if waits._error is None:
                self._inner.wait(seconds)
        finally:
            with waits._lock:
                waits._gates.discard(self)
        if not self._is_open:
            waits.check()
        return self._is_open


class _PerThread(threading.local):
    make: Callable[[], Gate] = LockGate
    reads = False
    endable: EndableWaits | None = None


_per_thread = _PerThread()


def new_gate() -> Gate:
    return _per_thread.make()


def wait_at(make: Callable[[], Gate]) -> None:
    _per_thread.make = make


def awaiting_loop() -> AbstractEventLoop | None:
    """Return the running loop if this code must await instead of blocking, else None.

    RLinf's rules let coroutines block.
    """
    # Even under RLinf's rules, code that handles received frames, such as functions passed to `then` and a group's
    # callbacks, must await.
    return running_loop() if not dialect.is_rlinf or _per_thread.reads else None


def must_await() -> bool:
    return awaiting_loop() is not None


def may_wait() -> bool:
    """True if this thread may block: it neither runs a loop nor handles received frames, which may end other waits."""
    return not _per_thread.reads and (dialect.is_rlinf or running_loop() is None)


def check_ended() -> None:
    if _per_thread.endable is not None:
        _per_thread.endable.check()


def reads(does: bool) -> None:
    """Record whether this thread handles received frames from now on."""
    _per_thread.reads = does
