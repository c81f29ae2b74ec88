"""Fate of every item, from the journals of its holders: Jepsen's four classes of a queue."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

Identity = tuple[int, int]
"""Who put it, and its number."""

KEPT, UNSURE, GIVEN_BACK = 1, 2, 3
"""Ends of a line of a consumer: it has the item for good; its lease is ending well; its lease was lost.

The channel confirms a lease, and then its holder hears so.  Between the two it has the items and cannot tell.
"""


@dataclass(frozen=True)
class Taken:
    """One item that a consumer had.

    Attributes:
        flagged: it was said to be redelivered.
        get: how many things the consumer had asked for before; tasks of one process need not resume in that order.
        is_kept: the consumer has it for good: its ``get`` has returned, or its lease has ended well.
    """

    identity: Identity
    consumer: int
    flagged: bool
    get: int
    is_kept: bool = False


@dataclass
class History:
    """A run, as its survivors tell it.

    Attributes:
        planned: how many items each producer was to put.
        accepted: what producers had the word of the channel for.
        taken: by consumers, those who were killed included.
        killed: who was killed.
        keys: an item's key is its number modulo this.
    """

    planned: dict[int, int] = field(default_factory=dict)
    accepted: set[Identity] = field(default_factory=set)
    taken: list[Taken] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)
    keys: int = 1

    def accept(self, producer: int, lines: Iterable[str]) -> None:
        """A producer's journal; a last line that was cut off counts for nothing."""
        self.accepted |= {(producer, int(line)) for line in lines if line.endswith("\n")}

    def take(self, consumer: int, lines: Iterable[str]) -> None:
        """A consumer's journal."""
        unsure: dict[Identity, Taken] = {}
        for line in lines:
            if line.endswith("\n"):
                producer, number, flagged, get, kept = map(int, line.split())
                taken = Taken((producer, number), consumer, bool(flagged), get, kept == KEPT)
                if kept == UNSURE:
                    unsure[taken.identity] = taken
                else:
                    unsure.pop(taken.identity, None)
                    if kept != GIVEN_BACK:
                        self.taken.append(taken)
        self.taken += unsure.values()

    def lost(self) -> set[Identity]:
        """Accepted, and nobody has it for good, nor was killed on the way there."""
        return self.accepted - {
            taken.identity for taken in self.taken if taken.is_kept or taken.consumer in self.killed
        }

    def unexpected(self) -> set[Identity]:
        """Had by somebody, and never put by anybody."""
        had = {taken.identity for taken in self.taken}
        return {(who, number) for who, number in had if not 0 <= number < self.planned.get(who, 0)}

    def duplicated(self) -> set[Identity]:
        """Had for good by two, or handed out twice without a flag."""
        unflagged = Counter(taken.identity for taken in self.taken if not taken.flagged and not taken.is_kept)
        for_good = Counter(taken.identity for taken in self.taken if taken.is_kept)
        return {identity for identity, count in (*unflagged.items(), *for_good.items()) if count > 1}

    def recovered(self) -> set[Identity]:
        """Had without the producer's knowing that it was accepted: it died, or gave up, before it heard."""
        return {taken.identity for taken in self.taken} - self.accepted

    def out_of_order(self) -> set[Identity]:
        """Given to a later get of a consumer than something that the same producer put later under the same key."""
        latest: dict[tuple[int, int, int], int] = defaultdict(lambda: -1)
        wrong = set()
        for taken in sorted(self.taken, key=lambda taken: taken.get):
            producer, number = taken.identity
            line = (taken.consumer, producer, number % self.keys)
            if not taken.flagged:
                if number < latest[line]:
                    wrong.add(taken.identity)
                latest[line] = max(latest[line], number)
        return wrong

    def told(self) -> str:
        return (
            f"{len(self.accepted)} accepted, {len(self.taken)} taken, {len(self.killed)} killed: "
            f"{len(self.lost())} lost, {len(self.unexpected())} unexpected, {len(self.duplicated())} "
            f"duplicates, {len(self.out_of_order())} out of order, {len(self.recovered())} recovered"
        )
