"""``TakenPage`` and ``Takings``: records of items that a process took out of queues, readable after its death.

A consumer owns an item once the page has a note of it. The frame that reports the item may be sent later, together
with others; if the process dies before that, its daemon reads the page and reports in its place.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from rlinf_async._core.mapping import map_memory
from rlinf_async._core.segment import close_fds

NOTES: Final = 512
_WORDS: Final = 4
_BYTES: Final = NOTES * _WORDS * 8

# Maximum delay until a note is reported, if no request reports it sooner.
_WITHIN_S: Final = 2e-3


class TakenPage:
    """A ring of the latest notes; a note says that the first ``count`` items of a get were taken.

    One process writes, from any thread; its daemon reads after the process's death. Reported notes stay until later
    notes overwrite them.
    """

    def __init__(self, fd: int) -> None:
        # Python's own mmap would keep a descriptor of each page open, both here and in the daemon.
        self._words = memoryview(map_memory(fd, _BYTES, writable=True)).cast("B").cast("Q")
        self._next = itertools.count()

    def __repr__(self) -> str:
        return f"<TakenPage [{len(self.read())} notes]>"

    @classmethod
    def make(cls) -> tuple[TakenPage | None, list[int]]:
        """Return a new page and its descriptor, which the caller sends or closes; None if no descriptor is free."""
        try:
            fd = os.memfd_create("rlinf-taken", os.MFD_CLOEXEC)
        except OSError:
            return None, []
        try:
            os.posix_fallocate(fd, 0, _BYTES)
            return cls(fd), [fd]
        except OSError:
            os.close(fd)
            return None, []

    @classmethod
    def of(cls, fds: Sequence[int]) -> TakenPage | None:
        """Return the page whose descriptor a daemon received, and close the descriptor; None if there is none."""
        try:
            return cls(fds[0]) if fds else None
        except OSError:
            return None
        finally:
            close_fds(fds)

    def note(self, place: int, channel: int, get: int, count: int) -> None:
        # The process may be killed between two of these lines. Readers skip a note whose get is 0, so the get is zeroed
        # first and written last.
        words, at = self._words, next(self._next) % NOTES * _WORDS
        words[at] = 0
        words[at + 1] = place
        words[at + 2] = channel
        words[at + 3] = count
        words[at] = get

    def read(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Return a dict that maps each (queue node, channel) to the (get, count) pairs of its notes."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        words = self._words.tolist()
        for at in range(0, len(words), _WORDS):
            get, place, channel, count = words[at : at + _WORDS]
            if get:
                found.setdefault((place, channel), []).append((get, count))
        return found


class TakingsQueue(Protocol):
    """A queue from which items were taken."""

    def send_taken(self) -> None:
        """Report all unreported takings."""


class Takings:
    """The queues of one client with unreported takings; any thread may call the methods.

    Attributes:
        page: the page that the client's daemon reads; if it is None, every taking is reported immediately.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], None]) -> None:
        self.page: TakenPage | None = None
        self._later = later
        self._queues: dict[TakingsQueue, None] = {}
        self._noted = 0
        self._is_due = False

    def __repr__(self) -> str:
        return f"<Takings [{len(self._queues)} queues]>"

    def note(self, queue: TakingsQueue, place: int, channel: int, get: int, count: int) -> None:
        """Record that the first ``count`` items of a get were taken; the queue's next frame reports this."""
        page = self.page
        if page is None:
            queue.send_taken()
            return
        page.note(place, channel, get, count)
        self._noted += 1
        self._queues[queue] = None
        if not self._is_due:
            self._is_due = True
            self._later(_WITHIN_S, self.report)
        elif self._noted >= NOTES // 2:
            # Report now, before the ring overwrites notes that have not been reported.
            self.report()

    def report(self) -> None:
        self._is_due = False
        self._noted = 0
        for queue in list(self._queues):
            self._queues.pop(queue, None)
            queue.send_taken()
