"""Estimates the offset of another machine's clock from requests and answers over the network.

Both sides read monotonic clocks, which have arbitrary origins and drift. A request sent at ``asked``, answered at
``theirs`` and received at ``heard`` shows that ``theirs`` was between ``asked`` and ``heard``. The midpoint is wrong by
at most half the round trip, and by much less if both directions take about equally long (as in NTP).
"""

from __future__ import annotations

import bisect
from collections import deque
from typing import Final

_DRIFT: Final = 100e-6  # maximum drift between two working clocks, in seconds per second

_MAX_SAMPLES: Final = 64
_MAX_KNOTS: Final = 1024

_MIN_CORRECTION_NS: Final = 20_000  # smaller corrections are omitted

_SLEW_NS: Final = 500_000_000  # duration over which a correction is spread


class ClockOffset:
    """The difference in nanoseconds that maps the other machine's clock to this one's.

    The offset is a function of the other clock's time. It never jumps, and never changes for a time that was already
    converted, so converted times keep their order, whatever samples arrive later.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=_MAX_SAMPLES)
        self._knots: list[tuple[int, int]] = []
        self._latest: int | None = None  # the other clock's latest converted time
        self.heard_at = 0  # arrival of the last answer, by this machine's clock

    def __repr__(self) -> str:
        return f"<ClockOffset [{len(self._samples)} samples, {len(self._knots)} knots]>"

    @property
    def is_known(self) -> bool:
        return bool(self._samples)

    def add_sample(self, asked: int, theirs: int, heard: int) -> None:
        if heard < asked:
            raise ValueError(f"an answer that came at {heard}, before it was asked for at {asked}")
        self._samples.append((theirs, (asked + heard) // 2 - theirs, heard - asked))
        self.heard_at = heard
        if self._latest is None:
            self._knots = [(theirs, self._best(theirs))]
        else:
            self._correct(max(theirs, self._latest))

    def to_ours(self, theirs: int) -> int:
        """Convert a reading of the other machine's clock to this machine's clock."""
        if self._knots:
            self._latest = theirs if self._latest is None else max(self._latest, theirs)
        return theirs + self._at(theirs)

    def _best(self, theirs: int) -> int:
        """Return the offset of the sample with the least uncertainty at that time, by round trip and age."""
        _, offset, _ = min(self._samples, key=lambda sample: sample[2] / 2 + abs(theirs - sample[0]) * _DRIFT)
        return offset

    def _correct(self, now: int) -> None:
        best, drawn = self._best(now), self._at(now)
        if abs(best - drawn) < _MIN_CORRECTION_NS or now < self._knots[-1][0]:
            return  # the difference is small enough, or a correction is in progress
        # Spread the correction so that converted time never stands still or goes back.
        slew = max(_SLEW_NS, 4 * abs(best - drawn))
        self._knots += [(now, drawn), (now + slew, best)]
        del self._knots[:-_MAX_KNOTS]

    def _at(self, theirs: int) -> int:
        knots = self._knots
        if not knots:
            return 0
        if theirs >= knots[-1][0]:
            return knots[-1][1]
        after = bisect.bisect_right(knots, theirs, key=lambda knot: knot[0])
        if after == 0:
            return knots[0][1]
        (since, low), (until, high) = knots[after - 1], knots[after]
        return low + (high - low) * (theirs - since) // (until - since)
