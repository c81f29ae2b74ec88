"""Records kept by a channel's queue: ``QueueClient`` (a process), ``Item`` (a put), ``Demand`` (a get)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Item:
    """An item put by a producer: queued, leased, or waiting for room.

    Attributes:
        producer, number: the client that put the item, and the number of the put among the client's requests.
        weight: its weight in a batch.
        nbytes: size counted against ``max_bytes``.
        sent: True if the put was done when sent, so that the item is admitted even if the producer dies.
        place: its permanent position in the queue, to which it can be returned.
        redelivered: True if an earlier consumer received the item but returned it or died.
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
    """A request for an item, or for a batch of items.

    Attributes:
        target: weight of the batch; None for one item.
        counted: True if ``target`` is a number of items, and each item counts as one.
        partly: True if fewer than ``target`` items suffice; only with ``counted``.
        shared: True if one item suffices when there are other consumers; only with ``partly``.
        stepwise: True if the consumer takes the items one at a time.
        lease_s: seconds for which the items stay in the queue until confirmed; 0 means no limit, None no lease.
        items: gathered items of a waiting batch, or untaken items of a delivered demand.
        weight: total weight, or number, of the items.
        taken: number of taken items of a delivered demand.
        delivered: True once answered, until the consumer has taken all items.
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
    timer: Any = None  # the owner's; freed with the lease

    def __repr__(self) -> str:
        return f"<Demand {self.consumer}:{self.number} [{len(self.items)} items]>"


@dataclass(slots=True, eq=False)
class QueueClient:
    """A process that uses the queue.

    Attributes:
        expected: number of the next request.
        early: requests that arrived before their turn.
        cancelled: numbers of requests cancelled before their arrival.
        puts: the client's items that wait for room.
        gets: gets that wait or have untaken items.
        unsaid_bytes: bytes of the client's admitted ``sent`` items that have not been reported to it yet.
        has_put, has_got: True once a put was accepted or an item was delivered, respectively; set by the queue's owner.
    """

    expected: int = 1
    early: dict[int, Item | Demand] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    puts: dict[int, Item] = field(default_factory=dict)
    gets: dict[int, Demand] = field(default_factory=dict)
    unsaid_bytes: int = 0
    has_put: bool = False
    has_got: bool = False
