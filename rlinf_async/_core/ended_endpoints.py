"""``EndedEndpoints``: the ids of all processes that have left a run, in the room of a few intervals."""

from __future__ import annotations

from bisect import bisect_right


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
        firsts, lasts = self._firsts, self._lasts
        at = bisect_right(firsts, endpoint)  # of the first stretch behind it
        if at and endpoint <= lasts[at - 1]:
            return
        joins_before = at > 0 and lasts[at - 1] == endpoint - 1
        joins_behind = at < len(firsts) and firsts[at] == endpoint + 1
        if joins_before and joins_behind:
            lasts[at - 1] = lasts[at]
            del firsts[at], lasts[at]
        elif joins_before:
            lasts[at - 1] = endpoint
        elif joins_behind:
            firsts[at] = endpoint
        else:
            firsts.insert(at, endpoint)
            lasts.insert(at, endpoint)
