"""Blocking of threads outside event loops: the ``Gate`` at which a thread waits, and whether it may block."""

from __future__ import annotations

import threading
import types
from asyncio import _get_running_loop as running_loop  # None where there is none, and no exception
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

from rlinf_async._core import dialect
from rlinf_async._core.error_copy import copy_of

T = TypeVar("T")


class Gate(Protocol):
    """Where one thread waits once."""

    def open(self) -> None:
        """Ends the wait, or lets it end at once; from any thread."""

    def wait(self, seconds: float) -> bool:
        """False after so many seconds in which it was not opened."""


class LockGate:
    """Where a thread waits that does nothing else meanwhile."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        self._lock.release()

    def wait(self, seconds: float) -> bool:
        return self._lock.acquire(timeout=seconds)


class EndableWaits:
    """Blocking waits of one thread within a block, which any thread can end with an error.

    Example:
        with EndableWaits() as waits:      # the thread that waits
            work.wait()
        waits.end(PeerLost("rank 1 has died"))      # another one: each wait raises a copy, and each that begins later
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gates: set[_EndableGate] = set()
        self._error: Exception | None = None
        self._make: Callable[[], Gate] = LockGate

    def __enter__(self) -> EndableWaits:
        self._make = _here.make
        wait_at(lambda: _EndableGate(self, self._make()))
        _here.endable = self
        return self

    def __exit__(self, *_: Any) -> None:
        _here.endable = None
        wait_at(self._make)

    @types.coroutine
    def carry(self, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Await a coroutine, whose steps may block by RLinf's rules."""
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
        # In this order: a wait enters itself before it looks for the error, so that one of the two sees the other.
        self._error = error
        with self._lock:
            gates = list(self._gates)
        for gate in gates:
            gate.wake()


class _EndableGate:
    """A gate of another kind, whose wait ends with the error of its ``EndableWaits`` as well."""

    def __init__(self, waits: EndableWaits, inner: Gate) -> None:
        self._waits = waits
        self._inner = inner
        self._is_open = self._is_awake = False

    def open(self) -> None:
        self._is_open = True
        self.wake()

    def wake(self) -> None:
        """Open the inner gate, which may be opened once only."""
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


class _Here(threading.local):
    make: Callable[[], Gate] = LockGate
    reads = False
    endable: EndableWaits | None = None


_here = _Here()


def new_gate() -> Gate:
    """Where this thread waits next."""
    return _here.make()


def wait_at(make: Callable[[], Gate]) -> None:
    """Says where this thread waits from now on."""
    _here.make = make


def must_await() -> bool:
    """True in a coroutine, which awaits where other code blocks; RLinf's rules let a coroutine block as well.

    They do not where this thread handles what it has read: a function given to ``then``, a callback of a group's.
    """
    return running_loop() is not None and (not dialect.is_rlinf or _here.reads)


def may_wait() -> bool:
    """Whether this thread may wait here: no loop runs on it, and it is not handling what it has read, on which others
    wait."""
    return not _here.reads and not must_await()


def check_ended() -> None:
    """Raise the error with which the waits of this thread have been ended."""
    if _here.endable is not None:
        _here.endable.check()


def reads(does: bool) -> None:
    """Says whether this thread handles what it has read from now on."""
    _here.reads = does
