"""``EndedEndpoints``: the ids of all processes of a run that have ended, stored as a few intervals."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class EndedEndpoints:
    """A set of endpoint ids that only grows.

    Each node numbers its endpoints consecutively, and nearly all of them end. The set therefore stores intervals: about
    as many as there are live processes, however many have ended.
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __repr__(self) -> str:
        count = sum(self._lasts) - sum(self._firsts) + len(self._firsts)
        return f"<EndedEndpoints [{count} in {len(self._firsts)} stretches]>"

    def __contains__(self, endpoint: object) -> bool:
        if not isinstance(endpoint, int):
            return False
        at = bisect_right(self._firsts, endpoint) - 1
        return at >= 0 and endpoint <= self._lasts[at]

    def add(self, endpoint: int) -> None:
        """Add an id, which may already have been added."""
        self.add_all(endpoint, endpoint)

    def add_all(self, first: int, last: int) -> None:
        """Add all ids from ``first`` to ``last``, such as those of a lost node."""
        firsts, lasts = self._firsts, self._lasts
        # ``begin`` and ``end`` enclose the intervals that touch the new one.
        begin = bisect_left(lasts, first - 1)
        end = bisect_right(firsts, last + 1)
        if begin < end:
            first, last = min(first, firsts[begin]), max(last, lasts[end - 1])
        firsts[begin:end], lasts[begin:end] = [first], [last]
