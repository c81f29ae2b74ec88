"""``RestartRounds``: ranks that are away or back, and attempts of their hooks: plain state of a group's restarts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Restart:
    """One attempt of a group to go on after a restart, as ``on_restart`` of its workers and of the driver get it.

    Indexing, iterating and ``len()`` are those of ``counts``.

    Attributes:
        counts: by rank of the group, how often that rank was started again.
        ranks: the ranks that have come back; with those of earlier attempts that a death has ended.
        attempt: the number of this attempt, from 1 on.  It is the same on all ranks, and no other attempt of this group
            has it: keys of a store and names of process groups are made of it.
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
    """Rounds of one group's restarts.

    A round is over once the hooks of an attempt have ended while nobody was away::

        died ──► away ──returned──► back ──begin──► hooks run ──end──► nobody is away, nobody is back
                  ▲                                     │
                  └──────── a death: the hooks end, and the next attempt tells of these ranks too

    ``died`` may come in another thread than all other calls.

    Attributes:
        away: by rank, the exit reports of ranks that have died and are not back.
        attempt: the number of the last attempt.
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
        """Ranks that take no calls yet: they are away, or the hooks of their return have not ended."""
        return self._back | self.away.keys()

    def died(self, rank: int, report: Mapping[str, Any]) -> None:
        """Note a death; of a rank that is away already, the later report."""
        self.away[rank] = dict(report)

    def missed(self, rank: int, report: Mapping[str, Any]) -> None:
        """Note a rank that is gone, unless its death was told, and told better."""
        self.away.setdefault(rank, dict(report))

    def returned(self, rank: int) -> dict[str, Any]:
        """Note that a rank is there again. Return the report of its end."""
        self._back.add(rank)
        return self.away.pop(rank)

    def given_up(self, rank: int) -> dict[str, Any]:
        """Note that a rank does not come back. Return the report of its end."""
        self._back.discard(rank)
        return self.away.pop(rank)

    def begin(self, counts: Sequence[int]) -> Restart:
        """Begin an attempt of the hooks."""
        self.attempt += 1
        return Restart(tuple(counts), tuple(sorted(self._back - self.away.keys())), self.attempt)

    def go_on(self, rank: int, counts: Sequence[int]) -> Restart:
        """Let a rank that is back go on by itself, whoever else is away: no hook has to meet it."""
        self.attempt += 1
        self._back.discard(rank)
        return Restart(tuple(counts), (rank,), self.attempt)

    def end(self) -> bool:
        """End an attempt. Return False if a death has ended it: then the next one tells of its ranks again."""
        if self.away:
            return False
        self._back.clear()
        return True
