"""Blocking of threads outside event loops: the ``Gate`` at which a thread waits, and whether it may block."""

from __future__ import annotations

import threading
from asyncio import _get_running_loop as running_loop
from collections.abc import Callable
from typing import Protocol


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


class _Here(threading.local):
    make: Callable[[], Gate] = LockGate
    reads = False


_here = _Here()


def new_gate() -> Gate:
    """Where this thread waits next."""
    return _here.make()


def wait_at(make: Callable[[], Gate]) -> None:
    """Says where this thread waits from now on."""
    _here.make = make


def may_wait() -> bool:
    """Whether this thread may wait here: no loop runs on it, and it is not handling what it has read, on which others
    wait."""
    return running_loop() is None and not _here.reads


def reads(does: bool) -> None:
    """Says whether this thread handles what it has read, outside of any loop, from now on."""
    _here.reads = does
