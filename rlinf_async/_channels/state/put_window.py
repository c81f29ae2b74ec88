"""The window of bytes that one process may have in flight to a queue, in puts that the queue has not yet admitted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final, Generic, Protocol, TypeVar

from rlinf_async._core.frames import MAX_INLINE_BYTES

ITEM_OVERHEAD_BYTES: Final = 256
"""Approximate overhead of an item in addition to its body."""

WINDOW_BYTES: Final = 16 << 20
_SHARE: Final = 32
"""Divisor of a queue's ``max_bytes``, if bounded, that yields the window of one process."""

_DESCRIPTOR_BYTES: Final = 256 << 10
"""Minimum charge for an item in sealed memory, because all processes together share a limit on descriptors."""


def cost(nbytes: int) -> int:
    """Return the number of window bytes taken by an item with a body of ``nbytes`` bytes."""
    whole = nbytes + ITEM_OVERHEAD_BYTES
    return whole if nbytes <= MAX_INLINE_BYTES else max(whole, _DESCRIPTOR_BYTES)


def report_from_bytes() -> int:
    """Return the number of admitted bytes after which a queue reports them.

    This is half a window: a process that has filled its window gets the report while the other half is in flight.
    """
    return WINDOW_BYTES // 2


class NumberedPut(Protocol):
    """A put that gets its number, among its process's requests, when it is sent."""

    number: int


P = TypeVar("P", bound=NumberedPut)


class PutWindow(Generic[P]):
    """The puts of one process to one queue; thread-safe.

    A put enters while the window is not full, so a single put may exceed it. Other puts wait in order. A put is
    numbered as it enters, under the lock, so a later put from any thread has a higher number.

    Attributes:
        size: size of the window in bytes.
        waiting: puts that have not yet entered, with their costs.
    """

    def __init__(self, max_bytes: int, numbers: Iterator[int]) -> None:
        self.size = max_bytes // _SHARE if max_bytes else WINDOW_BYTES
        self.waiting: dict[P, int] = {}
        self.leaving: set[int] = set()  # numbers of the puts that have entered and that the caller has not yet sent
        self._numbers = numbers
        self._used = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<PutWindow [{self._used} of {self.size} bytes, {len(self.waiting)} puts wait]>"

    def enter(self, put: P, nbytes: int) -> bool:
        """Let the put enter or wait. Return True if it may be sent now."""
        with self._lock:
            if self.waiting or self._used >= self.size:
                self.waiting[put] = nbytes
                return False
            self._used += nbytes
            put.number = next(self._numbers)
            self.leaving.add(put.number)
            return True

    def force(self, put: P, nbytes: int) -> tuple[list[P], bool]:
        """Admit the waiting puts, then this put, even beyond the window. Return all, and True if this put had room."""
        with self._lock:
            has_room = not self.waiting and self._used < self.size
            self.waiting[put] = nbytes
            return [self._next() for _ in range(len(self.waiting))], has_room

    def free(self, nbytes: int) -> None:
        with self._lock:
            self._used -= nbytes

    def next(self) -> P | None:
        with self._lock:
            return self._next() if self.waiting and self._used < self.size else None

    def _next(self) -> P:
        put = next(iter(self.waiting))
        self._used += self.waiting.pop(put)
        put.number = next(self._numbers)
        self.leaving.add(put.number)
        return put

    def withdraw(self, put: P) -> bool:
        with self._lock:
            return self.waiting.pop(put, None) is not None

    def end(self) -> list[P]:
        with self._lock:
            waiting, self.waiting = list(self.waiting), {}
            return waiting
