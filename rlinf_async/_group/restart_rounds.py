"""``RestartRounds``: plain state of a group's restarts: ranks that are away or back, and attempts to run hooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Restart:
    """One attempt of a group to resume after a restart; the argument of ``on_restart`` in workers and in the driver.

    Indexing, iteration and ``len()`` refer to ``counts``.

    Attributes:
        counts: number of restarts of each rank in the group.
        ranks: the restarted ranks, including those of earlier attempts that a death interrupted.
        attempt: number of this attempt, starting at 1; the same on all ranks and unique in the group, so that it can be
            part of the keys of a store and the names of process groups.
    """

    counts: tuple[int, ...]
    ranks: tuple[int, ...]
    attempt: int

    def __getitem__(self, rank: int) -> int:
        return self.counts[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self.counts)

    def __len__(self) -> int:
        return len(self.counts)


class RestartRounds:
    """The rounds of one group's restarts.

    A round is over once the hooks of an attempt have ended while no rank was away::

        died ──► away ──returned──► back ──begin──► hooks run ──end──► no rank is away, no rank is back
                  ▲                                     │
                  └──────── a death: the hooks end, and the next attempt includes these ranks too

    Only ``died`` may be called from another thread.

    Attributes:
        away: maps each dead rank that has not been restarted yet to its exit report.
        attempt: number of the last attempt.
    """

    def __init__(self) -> None:
        self.away: dict[int, dict[str, Any]] = {}
        self.attempt = 0
        self._back: set[int] = set()

    def __repr__(self) -> str:
        away = f"away: {sorted(self.away)}" if self.away else "all there"
        return f"<RestartRounds [{away}, attempt {self.attempt}]>"

    @property
    def is_over(self) -> bool:
        return not self.away and not self._back

    @property
    def coming_back(self) -> set[int]:
        """Return the ranks that do not take calls yet: dead ranks, and restarted ranks whose hooks have not ended."""
        return self._back | self.away.keys()

    def died(self, rank: int, report: Mapping[str, Any]) -> None:
        """Record a death; a later report about a dead rank replaces the earlier one."""
        self.away[rank] = dict(report)

    def missed(self, rank: int, report: Mapping[str, Any]) -> None:
        """Record the loss of a rank, unless its death was already reported."""
        self.away.setdefault(rank, dict(report))

    def returned(self, rank: int) -> dict[str, Any]:
        self._back.add(rank)
        return self.away.pop(rank)

    def abandon(self, rank: int) -> dict[str, Any]:
        self._back.discard(rank)
        return self.away.pop(rank)

    def begin(self, counts: Sequence[int]) -> Restart:
        self.attempt += 1
        return Restart(tuple(counts), tuple(sorted(self._back - self.away.keys())), self.attempt)

    def go_on(self, rank: int, counts: Sequence[int]) -> Restart:
        """Let a restarted rank take calls, even while others are being restarted, because it needs no hook."""
        self.attempt += 1
        self._back.discard(rank)
        return Restart(tuple(counts), (rank,), self.attempt)

    def end(self) -> bool:
        """End an attempt. Return False if a death has interrupted it, so that the next attempt includes its ranks."""
        if self.away:
            return False
        self._back.clear()
        return True
