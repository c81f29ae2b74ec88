"""Records that a channel's queue keeps: ``QueueClient`` (a process), ``Item`` (a put), ``Demand`` (single or batch)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Item:
    """An item that a producer has put: queued, leased, or waiting for room.

    Attributes:
        producer, number: the client that put it, and the number of that put among its requests.
        weight: counted by batches only.
        nbytes: its size, as it counts against ``max_bytes``.
        sent: its put was done when it was sent: it comes in, whatever becomes of the producer.
        place: its position in the queue, for good: an item that comes back goes there.
        redelivered: some consumer has been handed it before, and gave it back or died.
    """

    producer: int
    number: int
    key: bytes
    weight: int
    nbytes: int
    body: Any
    nowait: bool
    sent: bool = False
    place: int = -1
    redelivered: bool = False

    def __repr__(self) -> str:
        return f"<Item {self.producer}:{self.number} at {self.place} [{self.nbytes} bytes]>"

    def __lt__(self, other: Item) -> bool:
        return self.place < other.place


@dataclass(slots=True, eq=False)
class Demand:
    """A request for an item, or for a batch of them.

    Attributes:
        target: the weight of the batch; None where one item is wanted.
        counted: ``target`` is a number of items, and each counts one, whatever it weighs.
        partly: where fewer than ``target`` are there, these are wanted; only of one that is ``counted``.
        shared: where other clients get here too, one item is wanted; only of one that is ``partly``.
        stepwise: the consumer takes the items one after the other, not together.
        lease_s: seconds for which the items stay the channel's, until the consumer confirms them; 0 is for any time,
            None is no lease.
        items: of a batch that waits, those that it has so far; of a delivered one, those that are not taken yet.
        weight: of its items, or their number.
        taken: how many items of a delivered one have been taken.
        delivered: it has been answered, and its consumer has not taken all items yet.
    """

    consumer: int
    number: int
    key: bytes
    target: int | None = None
    nowait: bool = False
    counted: bool = False
    partly: bool = False
    shared: bool = False
    stepwise: bool = False
    lease_s: float | None = None
    items: list[Item] = field(default_factory=list)
    weight: int = 0
    taken: int = 0
    delivered: bool = False

    def __repr__(self) -> str:
        return f"<Demand {self.consumer}:{self.number} [{len(self.items)} items]>"


@dataclass(slots=True, eq=False)
class QueueClient:
    """One process, as the queue knows it.

    Attributes:
        expected: the number of its next request.
        early: requests that came before their turn.
        cancelled: numbers that were given up before they came.
        puts: its items that wait for room.
        gets: those that wait, and those whose items it has not taken.
        unsaid_bytes: of its items that were ``sent`` and are in: it has not been told of these yet.
        has_put, has_got: some put of it was accepted, some item was sent to it; noted by the queue's owner.
    """

    expected: int = 1
    early: dict[int, Item | Demand] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    puts: dict[int, Item] = field(default_factory=dict)
    gets: dict[int, Demand] = field(default_factory=dict)
    unsaid_bytes: int = 0
    has_put: bool = False
    has_got: bool = False
