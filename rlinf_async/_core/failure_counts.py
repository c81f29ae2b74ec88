"""Throttle for log lines about repeated failures: lets through the 1st, 10th, 100th, ... failure of each kind."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

MAX_KINDS: Final = 256  # a further kind evicts the one with the oldest failure


class FailureCounts:
    """Counts of failures by kind. A failure is logged the first time, then at powers of ten."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[Hashable, int] = {}

    def add(self, kind: Hashable) -> int | None:
        """Count one failure. Return the count if the failure should be logged, else None."""
        count = self._counts.pop(kind, 0) + 1
        self._counts[kind] = count  # moves the kind to the end, because the first kind is evicted next
        if len(self._counts) > MAX_KINDS:
            del self._counts[next(iter(self._counts))]
        return count if count == 10 ** (len(str(count)) - 1) else None

    def forget(self, kind: Hashable) -> None:
        """Reset a kind: its next failure counts as the first."""
        self._counts.pop(kind, None)
