"""Journal of a worker's calls: which have started, and which of those run; in memory that outlives the worker.

A caller whose worker dies is told whether its call had not started, had started, or had finished and lost only its
answer: what may be made again, and what may have had its effect.  The journal stands behind the slots of the flight
recorder's ring.  Its layout, in words of 8 bytes::

    0         1 once a call was left out for want of room
    1         1 where the worker has @concurrent methods
    2         1,024 calls that run: key, or 0
    1,026     256 callers: endpoint, number of its latest call that has started, and of its latest @concurrent one

A worker starts the calls of one caller in their order; those of ``@concurrent`` methods overtake the others, in an
order of their own.  So two numbers for each caller tell for all of its calls whether they have started.

    journal = CallJournal(memoryview(bytearray(JOURNAL_BYTES)))
    place = journal.start(source, call)
    journal.finish(place)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

_RUNNING: Final = 1024
_CALLERS: Final = 256
_RUNNING_AT: Final = 2
_CALLERS_AT: Final = _RUNNING_AT + _RUNNING
_WORDS: Final = _CALLERS_AT + 3 * _CALLERS
JOURNAL_BYTES: Final = 8 * _WORDS

Start = Callable[[int, int], int]
Finish = Callable[[int], None]


class Execution(StrEnum):
    """How far a call had come on a worker that died."""

    NOT_STARTED = "not started"
    STARTED = "started"
    FINISHED = "finished"
    """Its answer was lost; what it did has been done."""
    UNKNOWN = "unknown"
    """The worker had no flight recorder, or too many calls or callers for its journal."""


class CallJournal:
    """The writing side: a few stores for each call.  Each is of eight aligned bytes, which no kill tears.

    Args:
        buffer: ``JOURNAL_BYTES`` bytes, all zero.

    Attributes:
        start: ``start(source, call)``, a call begins to run on the main thread; its place, 0 where there is no room.
        start_concurrent: the same of an ``@concurrent`` method, on the thread of these.
        finish: ``finish(place)``, a call has a result or an error, of which nobody has heard yet.
    """

    def __init__(self, buffer: memoryview) -> None:
        self._words = buffer[:JOURNAL_BYTES].cast("Q")
        free = list(range(_RUNNING_AT, _CALLERS_AT))
        rows = _Rows(self._words)
        self.start = _starter(self._words, free, rows, 1)
        self.start_concurrent = _starter(self._words, free, rows, 2)
        self.finish = _finisher(self._words, free)

    def has_concurrent_methods(self) -> None:
        """From now on calls may overtake others."""
        self._words[1] = 1


# Closures, as in ``event_ring.py``: a method's look-ups of attributes would be half of the time.


def _starter(words: memoryview, free: list[int], rows: _Rows, column: int) -> Start:
    take, row_of = free.pop, rows.__getitem__

    # First among those that run, then among those that have started: what has started and does not run has finished.
    def start(source: int, call: int) -> int:
        try:
            row, place = row_of(source), take()
        except IndexError:
            words[0] = 1
            return 0
        words[place] = _key(source, call)
        words[row + column] = call
        return place

    return start


class _Rows(dict[int, int]):
    """The callers' rows, made as they come.

    Raises:
        IndexError: there is none left.
    """

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._left = list(range(_WORDS - 3, _CALLERS_AT - 3, -3))

    def __missing__(self, source: int) -> int:
        row = self._left.pop()  # of two threads each has its own
        self._words[row] = source
        return self.setdefault(source, row)


def _finisher(words: memoryview, free: list[int]) -> Finish:
    give = free.append

    def finish(place: int) -> None:
        if place:
            words[place] = 0
            give(place)

    return finish


class _Started(NamedTuple):
    in_turn: int
    concurrent: int


@dataclass(frozen=True)
class JournalContents:
    """What the journal of a worker that has died says of its calls.

    Attributes:
        running: by ``_key``.
        started: by caller.
        is_whole: no call is missing.
    """

    running: frozenset[int]
    started: dict[int, _Started]
    is_whole: bool
    may_overtake: bool

    @classmethod
    def read(cls, data: bytes) -> JournalContents:
        """Raises:
        ValueError: these are not ``JOURNAL_BYTES`` bytes.
        """
        if len(data) != JOURNAL_BYTES:
            raise ValueError(f"a journal of calls has {JOURNAL_BYTES} bytes, this has {len(data)}")
        words = memoryview(data).cast("Q")
        running = frozenset(words[_RUNNING_AT:_CALLERS_AT]) - {0}
        rows = range(_CALLERS_AT, _WORDS, 3)
        started = {words[row]: _Started(words[row + 1], words[row + 2]) for row in rows if any(words[row : row + 3])}
        return cls(running, started, not words[0], bool(words[1]))

    def execution(self, source: int, call: int) -> Execution:
        """How far a call of this endpoint had come."""
        if _key(source, call) in self.running:
            return Execution.STARTED
        started = self.started.get(source, _Started(0, 0))
        if not self.is_whole:
            return Execution.UNKNOWN
        if call > max(started):
            return Execution.NOT_STARTED
        # One that lies between the two has finished or not, depending on which kind of a method it is.
        return Execution.UNKNOWN if self.may_overtake and call > min(started) else Execution.FINISHED


def _key(source: int, call: int) -> int:
    """One word of an endpoint (12 bits of node, 20 of number) and its call; never 0, as calls count from 1."""
    return ((source >> 32 & 0xFFF) << 20 | source & 0xFFFFF) << 32 | call & 0xFFFFFFFF
