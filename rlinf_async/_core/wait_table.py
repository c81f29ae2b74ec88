"""Table of waits (of a loop's tasks, or of threads): how long each has lasted, and when a warning about it is due.

Plain state: the owner of a table calls ``due`` at the time given by ``next_due``. ``rows`` is public because waits
begin and end on hot paths, each with one operation on a dict.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final

FOREVER: Final = float("inf")


class WaitTable:
    """Waits with their start times, and the number of warnings about each.

    Attributes:
        rows: maps each key to the waiting object and the start of the wait on the monotonic clock; oldest first.
    """

    __slots__ = ("_said", "_usual", "rows")

    def __init__(self) -> None:
        self.rows: dict[Hashable, tuple[Any, float]] = {}
        self._said: dict[Hashable, tuple[int, Hashable]] = {}
        self._usual: dict[Hashable, int] = {}

    def __repr__(self) -> str:
        return f"<WaitTable [{len(self.rows)} wait, {len(self._said)} for long]>"

    def due(self, now: float, marks: Sequence[float]) -> list[tuple[Hashable, Any, float, int]]:
        """Return key, object, start, and number of passed marks for each row that has passed another mark."""
        self.learn()
        found = []
        # Iterate over a copy, because other threads begin and end waits.
        for key, (what, since) in list(self.rows.copy().items()):
            passed = sum(now - since >= mark for mark in marks)
            if passed > self._said.get(key, (0, None))[0]:
                found.append((key, what, since, passed))
        return found

    def count_warning(self, key: Hashable, place: Hashable | None, passed: int, last: int) -> bool:
        """Count a warning about a row, at its line of code (``place``). Return True if the warning is to be logged.

        If waits at a place have ended after ``n`` warnings, waits there usually take this long, so the first ``n``
        warnings about later waits are not logged. The ``last`` warning is always logged.
        """
        self._said[key] = (passed, place)
        return passed > self._usual.get(place, 0) or passed >= last

    def next_due(self, marks: Sequence[float]) -> float:
        """Return when the next warning is due, on the clock of the rows; ``FOREVER`` if none is due."""
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
        """Drop the parent's waits in a forked child."""
        self.rows.clear()
        self._said.clear()

    def learn(self) -> None:
        """Learn how long waits at a place usually take, from waits that have ended after warnings."""
        for key in [key for key in list(self._said) if key not in self.rows]:
            passed, place = self._said.pop(key, (0, None))  # another thread may already have learned from it
            if place is not None:
                self._usual[place] = max(passed, self._usual.get(place, 0))
