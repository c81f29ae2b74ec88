"""``EndedEndpoints``: the ids of all processes that have left a run, in the room of a few intervals."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class EndedEndpoints:
    """A set of endpoint ids that only grows.

    Ids are counted through on each node and nearly all of them end, so what is kept are the stretches without a gap: as
    many as there are processes alive, however many have come and gone.

    Example:
        ended = EndedEndpoints()
        ended.add(5)
        5 in ended, 6 in ended      # True, False
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
        """Takes an id in, also one that is there."""
        self.add_all(endpoint, endpoint)

    def add_all(self, first: int, last: int) -> None:
        """Takes in a stretch of ids: those of a node that is lost, say."""
        firsts, lasts = self._firsts, self._lasts
        begin = bisect_left(lasts, first - 1)  # the first stretch that it meets, and the one behind the last
        end = bisect_right(firsts, last + 1)
        if begin < end:
            first, last = min(first, firsts[begin]), max(last, lasts[end - 1])
        firsts[begin:end], lasts[begin:end] = [first], [last]
