"""``QueueCounts``: what became of a queue's items: put = got + dropped + present, in total and by key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

DISCARDED: Final = "discarded by close(discard=True)"
TOO_LATE: Final = "came after the channel was closed"
NODE_LOST: Final = "handed to a process whose node was lost"


@dataclass
class QueueCounts:
    """The numbers of items of one channel.

    Attributes:
        put: items accepted by the channel.
        got: items taken by consumers.
        dropped: items that no consumer will get; maps each reason to a number.
        present: items queued, gathered for a batch, or delivered but not yet taken.
        keys: maps each key (its bytes) with present items to its numbers of put, got and present items.
    """

    put: int = 0
    got: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    present: int = 0
    keys: dict[Any, tuple[int, int, int]] = field(default_factory=dict)

    def drop(self, reason: str, count: int = 1) -> None:
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def to_data(self) -> list[Any]:
        """Return the counts as plain data."""
        keys = [[key, *counts] for key, counts in self.keys.items()]
        return [self.put, self.got, self.dropped, self.present, keys]

    @classmethod
    def of(cls, parts: Iterable[list[Any]]) -> QueueCounts:
        """Return the sum over a channel's queues, from their plain data; each key belongs to only one queue."""
        whole = cls()
        for put, got, dropped, present, keys in parts:
            whole.put += put
            whole.got += got
            whole.present += present
            for reason, count in dropped.items():
                whole.drop(reason, count)
            whole.keys |= {key: tuple(counts) for key, *counts in keys}
        return whole

    def by(self, names: Mapping[Any, Any]) -> QueueCounts:
        return QueueCounts(
            self.put, self.got, self.dropped, self.present, {names[key]: each for key, each in self.keys.items()}
        )
