"""``TakenPage`` and ``Takings``: items that a process has taken out of queues, told to daemons even after its death.

A consumer has an item from the moment that the note stands in the page.  The frame that says so may leave later, with
others: where the process dies before that, its daemon reads the page and says it in the process's place.
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

_WITHIN_S: Final = 2e-3
"""Seconds after which a daemon hears what was taken, if no request has said it before."""


class TakenPage:
    """Ring of the latest notes, each of which says that the first ``count`` items of a get are taken.

    One process writes, from any thread; its daemon reads once it has died.  Notes that have been said in frames stay
    until others take their places.
    """

    def __init__(self, fd: int) -> None:
        # Python's own mmap would keep a descriptor of each page open, here and in the daemon.
        self._words = memoryview(map_memory(fd, _BYTES, writable=True)).cast("B").cast("Q")
        self._next = itertools.count()

    def __repr__(self) -> str:
        return f"<TakenPage [{len(self.read())} notes]>"

    @classmethod
    def make(cls) -> tuple[TakenPage | None, list[int]]:
        """Return a new page and its descriptor, which the caller sends or closes; None where there is no descriptor."""
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
        """Return the page that a daemon has sent, and close its descriptor; None if it has sent none."""
        try:
            return cls(fds[0]) if fds else None
        except OSError:
            return None
        finally:
            close_fds(fds)

    def note(self, place: int, channel: int, get: int, count: int) -> None:
        # The process may be killed between two of these lines.  A note without a get says nothing.
        words, at = self._words, next(self._next) % NOTES * _WORDS
        words[at] = 0
        words[at + 1] = place
        words[at + 2] = channel
        words[at + 3] = count
        words[at] = get

    def read(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Return (get, count) of all notes, by place and channel."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        words = self._words.tolist()
        for at in range(0, len(words), _WORDS):
            get, place, channel, count = words[at : at + _WORDS]
            if get:
                found.setdefault((place, channel), []).append((get, count))
        return found


class Queue(Protocol):
    """A queue from which something was taken."""

    def say_taken(self) -> None:
        """Sends what has not been said."""


class Takings:
    """The queues of one client that have not been told of everything that was taken; from any thread.

    Attributes:
        page: what the client's daemon reads; None where there is none: then everything is said at once.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], None]) -> None:
        """``later`` calls back after so many seconds."""
        self.page: TakenPage | None = None
        self._later = later
        self._queues: dict[Queue, None] = {}
        self._noted = 0
        self._is_due = False

    def __repr__(self) -> str:
        return f"<Takings [{len(self._queues)} queues]>"

    def note(self, queue: Queue, place: int, channel: int, get: int, count: int) -> None:
        """The first ``count`` items of a get are taken, which the queue says when it says anything."""
        page = self.page
        if page is None:
            queue.say_taken()
            return
        page.note(place, channel, get, count)
        self._noted += 1
        self._queues[queue] = None
        if not self._is_due:
            self._is_due = True
            self._later(_WITHIN_S, self.say)
        elif self._noted >= NOTES // 2:  # the page holds no more, and the loop may be busy
            self.say()

    def say(self) -> None:
        self._is_due = False
        self._noted = 0
        for queue in list(self._queues):
            self._queues.pop(queue, None)
            queue.say_taken()
