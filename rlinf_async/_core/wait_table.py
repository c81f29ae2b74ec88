"""Table of waits (of a loop's tasks, or of threads): how long each lasts, and when a warning about it is due.

Plain state: the owner of a table calls ``due`` when ``next_due`` says so.  ``rows`` is public because beginning and
ending a wait happen on hot paths: both are one operation of a dict.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final

FOREVER: Final = float("inf")


class WaitTable:
    """Waits, since when each lasts, and how many warnings were logged about it.

    Attributes:
        rows: by key, what waits and since when, in seconds of the monotonic clock; the oldest first.

    Example:
        table.rows[future] = (work, clock.monotonic())
        ...
        for key, work, since, nth in table.due(now, marks): ...    # ``nth`` mark has just been passed
        table.rows.pop(future, None)
    """

    __slots__ = ("_said", "_usual", "rows")

    def __init__(self) -> None:
        self.rows: dict[Hashable, tuple[Any, float]] = {}
        self._said: dict[Hashable, tuple[int, Hashable]] = {}
        self._usual: dict[Hashable, int] = {}

    def __repr__(self) -> str:
        return f"<WaitTable [{len(self.rows)} wait, {len(self._said)} for long]>"

    def due(self, now: float, marks: Sequence[float]) -> list[tuple[Hashable, Any, float, int]]:
        """Rows that have passed another of the ``marks`` (seconds, ascending): key, what, since, how many marks."""
        self.learn()
        found = []
        for key, (what, since) in list(self.rows.copy().items()):  # other threads begin and end waits meanwhile
            passed = sum(now - since >= mark for mark in marks)
            if passed > self._said.get(key, (0, None))[0]:
                found.append((key, what, since, passed))
        return found

    def say(self, key: Hashable, place: Hashable | None, passed: int, last: int) -> bool:
        """Counts a word about a row, whose ``place`` may be unknown; whether it is worth saying.

        Waits at one place that ended well after ``n`` words usually take so long: the first ``n`` words are not said
        again there.  The ``last`` one always is.
        """
        self._said[key] = (passed, place)
        return passed > self._usual.get(place, 0) or passed >= last

    def next_due(self, marks: Sequence[float]) -> float:
        """When the next word is due, by the clock of the rows; ``FOREVER`` if none is."""
        said = self._said
        return min(
            (
                since + marks[passed]
                for key, (_, since) in list(self.rows.copy().items())
                if (passed := said.get(key, (0, None))[0]) < len(marks)
            ),
            default=FOREVER,
        )

    def clear(self) -> None:
        """In a forked child: what waits is the parent's."""
        self.rows.clear()
        self._said.clear()

    def learn(self) -> None:
        """Waits that had words and are over tell how long waits take at their places."""
        for key in [key for key in list(self._said) if key not in self.rows]:
            passed, place = self._said.pop(key, (0, None))  # of a table of threads another one may have learned it
            if place is not None:
                self._usual[place] = max(passed, self._usual.get(place, 0))
