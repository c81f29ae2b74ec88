"""Offset of another machine's clock, estimated from questions and answers that cross the network.

Both sides read monotonic clocks, which count from anywhere and drift.  A question that leaves at ``asked``, is answered
at ``theirs`` and is back at ``heard`` says that ``theirs`` fell into that time: taking the middle is wrong by half of
the round trip at most, and by much less where both ways take about as long (as NTP does it).
"""

from __future__ import annotations

import bisect
from collections import deque
from typing import Final

_DRIFT: Final = 100e-6
"""Seconds per second by which two clocks may go apart; more is a fault of theirs."""

_MAX_SAMPLES: Final = 64
_MAX_KNOTS: Final = 1024

_MIN_CORRECTION_NS: Final = 20_000
"""Nanoseconds; a correction that is smaller is not made."""

_SLEW_NS: Final = 500_000_000
"""Nanoseconds over which a correction is spread."""


class ClockOffset:
    """What to add to readings of their clock, in nanoseconds, to have ours.

    It is a function of their time that never changes for a time that has been asked for once, and never jumps: what was
    before something else stays before it, whatever is learnt meanwhile.

    Example:
        offset.add_sample(asked, theirs, heard)    # several times; again every few seconds
        ours = offset.to_ours(theirs)
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=_MAX_SAMPLES)
        self._knots: list[tuple[int, int]] = []
        self._latest: int | None = None
        """The last of their times that was brought over."""
        self.heard_at = 0
        """When the last answer came, by our clock."""

    def __repr__(self) -> str:
        return f"<ClockOffset [{len(self._samples)} samples, {len(self._knots)} knots]>"

    @property
    def is_known(self) -> bool:
        return bool(self._samples)

    def add_sample(self, asked: int, theirs: int, heard: int) -> None:
        """One question and its answer."""
        if heard < asked:
            raise ValueError(f"an answer that came at {heard}, before it was asked for at {asked}")
        self._samples.append((theirs, (asked + heard) // 2 - theirs, heard - asked))
        self.heard_at = heard
        if self._latest is None:
            self._knots = [(theirs, self._best(theirs))]
        else:
            self._correct(max(theirs, self._latest))

    def to_ours(self, theirs: int) -> int:
        """A reading of their clock, as ours would have read."""
        if self._knots:
            self._latest = theirs if self._latest is None else max(self._latest, theirs)
        return theirs + self._at(theirs)

    def _best(self, theirs: int) -> int:
        """What the sample says that is least uncertain at that time: by its round trip, and by its age."""
        _, offset, _ = min(self._samples, key=lambda sample: sample[2] / 2 + abs(theirs - sample[0]) * _DRIFT)
        return offset

    def _correct(self, now: int) -> None:
        best, drawn = self._best(now), self._at(now)
        if abs(best - drawn) < _MIN_CORRECTION_NS or now < self._knots[-1][0]:
            return  # good enough, or a correction is under way
        # Spread so that their time, as we draw it, never stands still or goes back.
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
