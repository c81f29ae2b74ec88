"""``RingAdmission``: limits the number of recorded operations, so that a ring covers half a minute at any rate.

    admits = RingAdmission(65536, left_out).question()
    if admits():                    # a tenth of a microsecond at a high rate
        ring.begin(...)

Operations beyond ``slots / 2`` in ``COVERED_S`` (1092 a second for 65536 slots) and a burst of ``slots / 128`` are left
out and counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import repeat
from typing import Final

COVERED_S: Final = 30  # minimum seconds that a ring covers, except in a burst

# Number of operations omitted before the clock is read again, because reading it would dominate the cost of each.
_LEFT_OUT: Final = 16


# Number of operations admitted before the clock is read again; with a larger number, a quiet period would count twice.
_MAX_SHARE: Final = 256


class RingAdmission:
    """A token bucket that hands out shares; ``left_out`` gets the number of omitted operations; ``clock`` is in ns."""

    def __init__(
        self, slots: int, left_out: Callable[[int], None], clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._burst = max(1, slots // 128)
        self._interval_ns = COVERED_S * 1_000_000_000 * 2 // slots or 1
        self._report_left_out = left_out
        self._clock = clock
        self._left_out = 0
        # Time up to which admissions have been granted; a value one burst before now means a full bucket.
        self._given_until = clock() - self._burst * self._interval_ns

    def __repr__(self) -> str:
        return f"<RingAdmission [{1_000_000_000 // self._interval_ns} a second, {self._left_out} left out]>"

    def question(self) -> Callable[[], bool]:
        """Return a function to call once per new operation; true if the operation must be recorded.

        Any thread or finalizer may call it. Concurrent threads may get the same share twice.
        """
        answers: Callable[[], bool] = iter(()).__next__

        # Do not use ``itertools.chain``: a signal handler that raises in ``_hand_out`` would end it for ever, and
        # each later operation would fail with StopIteration.
        def admits() -> bool:
            nonlocal answers
            try:
                return answers()
            except StopIteration:
                pass
            is_admitted, count = self._hand_out()
            answers = repeat(is_admitted, count - 1).__next__  # another thread may use them up before the next line
            return is_admitted

        return admits

    def _hand_out(self) -> tuple[bool, int]:
        now = self._clock()
        self._given_until = max(self._given_until, now - self._burst * self._interval_ns)
        share = min((now - self._given_until) // self._interval_ns, _MAX_SHARE)
        if share < 1:
            self._left_out += _LEFT_OUT
            return False, _LEFT_OUT
        self._given_until += share * self._interval_ns
        if self._left_out:
            self._report_left_out(self._left_out)
        return True, share
