"""A journal of a worker's running and finished calls, in memory that outlives the worker.

From the journal, a dead worker's caller learns whether its call had not started, had started, or had finished and lost
only its answer, and so whether the call may have had an effect. The journal follows the slots of the flight recorder's
ring. Its layout, in words of 8 bytes::

    0         1 once a call was omitted for lack of room
    1         2,048 calls: key, highest bit set once finished; 0 if unused. New calls replace the oldest finished ones
    2,049     256 callers: endpoint, and the highest number of its calls that have started

    journal = CallJournal(memoryview(bytearray(JOURNAL_BYTES)))
    place = journal.start(source, call)
    journal.finish(place)
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_CALLS: Final = 2048
_CALLERS: Final = 256
_CALLS_AT: Final = 1
_CALLERS_AT: Final = _CALLS_AT + _CALLS
_FINISHED: Final = 1 << 63
_WORDS: Final = _CALLERS_AT + 2 * _CALLERS
JOURNAL_BYTES: Final = 8 * _WORDS

Start = Callable[[int, int], int]
Finish = Callable[[int], None]


class Execution(StrEnum):
    """The progress of a call on a dead worker."""

    NOT_STARTED = "not started"
    STARTED = "started"
    FINISHED = "finished"  # only the answer was lost; the call's effects are complete
    # The worker had no flight recorder, or more calls or callers than its journal holds.
    UNKNOWN = "unknown"


class CallJournal:
    """A thread-safe writer of a journal: a few stores of eight aligned bytes per call, which a kill cannot tear.

    Args:
        buffer: ``JOURNAL_BYTES`` bytes, all zero.

    Attributes:
        start: ``start(source, call)`` records that a call begins to run; returns its place, 0 if full.
        finish: ``finish(place)`` records that a call has a result or an error, before the answer is sent.
    """

    def __init__(self, buffer: memoryview) -> None:
        words = buffer[:JOURNAL_BYTES].cast("Q")
        free = deque(range(_CALLS_AT, _CALLERS_AT))
        self.start = _starter(words, free)
        self.finish = _finisher(words, free)


# Closures, as in ``event_ring.py``, because attribute look-ups in methods would take half of the time.


def _starter(words: memoryview, free: deque[int]) -> Start:
    take, row_of = free.popleft, _Rows(words).__getitem__

    # Write the caller's highest number before the call: a call with a higher number has certainly not started. The
    # number is never lowered: @concurrent calls, and calls from several threads of a caller, may start out of order.
    def start(source: int, call: int) -> int:
        try:
            (row, key), place = row_of(source), take()
        except IndexError:
            words[0] = 1
            return 0
        if words[row] < call:
            words[row] = call
        words[place] = key | call & 0xFFFFFFFF
        return place

    return start


class _Rows(dict[int, tuple[int, int]]):
    """Maps an endpoint to the row of its highest number and the key of its call 0; raises IndexError if rows run
    out."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._left = list(range(_WORDS - 2, _CALLERS_AT - 2, -2))

    def __missing__(self, source: int) -> tuple[int, int]:
        row = self._left.pop()  # pop() is atomic, so that two threads get different rows
        self._words[row] = source
        return self.setdefault(source, (row + 1, _key(source, 0)))


def _finisher(words: memoryview, free: deque[int]) -> Finish:
    give = free.append

    def finish(place: int) -> None:
        if place:
            words[place] |= _FINISHED
            give(place)

    return finish


class JournalContents:
    """The contents of a dead worker's journal; raises ValueError unless the data has ``JOURNAL_BYTES`` bytes."""

    def __init__(self, data: bytes) -> None:
        if len(data) != JOURNAL_BYTES:
            raise ValueError(f"a journal of calls has {JOURNAL_BYTES} bytes, this has {len(data)}")
        self._data = data

    def execution(self, source: int, call: int) -> Execution:
        known, key = _read(self._data), _key(source, call)
        if key in known.finished:
            return Execution.FINISHED
        if key in known.running:
            return Execution.STARTED
        if known.has_all or (known.is_whole and call > known.started.get(source, 0)):
            return Execution.NOT_STARTED
        return Execution.UNKNOWN


@dataclass(frozen=True)
class _JournalCalls:
    """Calls in a journal by ``_key``, and each caller's highest number; ``has_all`` is true if no call is missing."""

    running: frozenset[int]
    finished: frozenset[int]
    started: dict[int, int]
    is_whole: bool
    has_all: bool


@functools.lru_cache(maxsize=2)
def _read(data: bytes) -> _JournalCalls:
    """Parse a journal. Cached, because all calls are looked up together after a death."""
    words = memoryview(data).cast("Q")
    calls = frozenset(words[_CALLS_AT:_CALLERS_AT])
    finished = frozenset(key & ~_FINISHED for key in calls if key & _FINISHED)
    started: dict[int, int] = {}
    for row in range(_CALLERS_AT, _WORDS, 2):
        started[words[row]] = max(words[row + 1], started.get(words[row], 0))
    return _JournalCalls(calls, finished, started, not words[0], not words[0] and 0 in calls)


def _key(source: int, call: int) -> int:
    """Return 63 bits of an endpoint (11 of its node, 20 of its number) and its call; never 0, as calls begin at 1."""
    return ((source >> 32 & 0x7FF) << 20 | source & 0xFFFFF) << 32 | call & 0xFFFFFFFF
