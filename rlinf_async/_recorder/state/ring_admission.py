"""``Admission``: which operations a flight recorder records, so that its ring covers half a minute at any rate.

    admits = Admission(65536, left_out).question()
    if admits():                    # a fifteenth of a microsecond where the rate is high
        ring.begin(...)

Beyond ``slots / 2`` operations in ``COVERED_S`` (1092 a second of 65536 slots) and a burst of ``slots / 128``, they are
left out, and counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Final

COVERED_S: Final = 30
"""Seconds that a ring covers at least, but for a burst."""

_LEFT_OUT: Final = 16
"""Operations that are left out without a look at the clock, which would be most of what leaving one out costs."""


_MAX_SHARE: Final = 256
"""Operations that are admitted without a look at the clock; more would let a quiet time count twice."""


class Admission:
    """A bucket of admissions, iterated over in shares: the answers to the next few operations.

    Args:
        slots: events of the ring; an operation has two.
        left_out: is told how many operations were left out so far.
        clock: nanoseconds.
    """

    def __init__(
        self, slots: int, left_out: Callable[[int], None], clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._burst = max(1, slots // 128)
        self._interval_ns = COVERED_S * 1_000_000_000 * 2 // slots or 1
        self._tell = left_out
        self._clock = clock
        self._left_out = 0
        # Time up to which admissions have been given: one a burst ago is a full bucket.
        self._given_until = clock() - self._burst * self._interval_ns

    def __repr__(self) -> str:
        return f"<Admission [{1_000_000_000 // self._interval_ns} a second, {self._left_out} left out]>"

    def question(self) -> Callable[[], bool]:
        """What is asked once for each operation that begins: whether it is recorded.

        It may be asked by any thread and by finalizers.  It is no promise among threads: a share may be given twice.
        """
        return chain.from_iterable(self).__next__

    # A class of its own and no generator, which could not be entered by a second thread, or a finalizer, in the middle.

    def __iter__(self) -> Iterator[Iterator[bool]]:
        return self

    def __next__(self) -> Iterator[bool]:
        now = self._clock()
        self._given_until = max(self._given_until, now - self._burst * self._interval_ns)
        share = min((now - self._given_until) // self._interval_ns, _MAX_SHARE)
        if share < 1:
            self._left_out += _LEFT_OUT
            return repeat(False, _LEFT_OUT)
        self._given_until += share * self._interval_ns
        if self._left_out:
            self._tell(self._left_out)
        return repeat(True, share)
