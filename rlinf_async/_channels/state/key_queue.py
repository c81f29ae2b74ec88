"""One key of a channel's queue: what is in it, and who waits for it."""

from __future__ import annotations

from collections import OrderedDict, deque
from heapq import heappop
from typing import Any


class Item:
    """Something that was put.

    Attributes:
        producer, number: who put it, as the how-many-th thing that it asked of the queue.
        weight: counted by batches only.
        nbytes: its size, as it counts against ``max_bytes``.
        body: what it carries; None while that is still with its producer.
        place: where it stands in the queue, for good: what comes back goes there.
        redelivered: some consumer has been handed it before, and gave it back or died.
        pulled: it has been promised room, and its body is on its way.
        paid: bytes of credit that its producer has paid for it with; then it is in, whatever becomes of the producer.
    """

    __slots__ = (
        "body", "key", "nbytes", "nowait", "number", "paid", "place", "producer", "pulled", "redelivered", "weight"
    )  # fmt: skip

    def __init__(
        self,
        producer: int,
        number: int,
        key: bytes,
        weight: int,
        nbytes: int,
        body: Any,
        nowait: bool,
        paid: int = 0,
    ) -> None:
        self.producer = producer
        self.number = number
        self.key = key
        self.weight = weight
        self.nbytes = nbytes
        self.body = body
        self.nowait = nowait
        self.paid = paid
        self.place = -1
        self.redelivered = False
        self.pulled = False

    def __repr__(self) -> str:
        return f"<Item {self.producer}:{self.number} at {self.place} [{self.nbytes} bytes]>"

    def __lt__(self, other: Item) -> bool:
        return self.place < other.place


class Get:
    """Somebody who wants an item, or a batch of them.

    Attributes:
        target: the weight of the batch; None where one item is wanted.
        items: what it has; of a batch that waits, what it has so far.
        weight: of its items.
        delivered: it has been answered, and its consumer has not taken the items yet.
        ahead: nobody has asked for it yet, as far as is known here (``_channels/state/ahead.py``).
    """

    __slots__ = ("ahead", "consumer", "delivered", "items", "key", "nowait", "number", "target", "weight")

    def __init__(
        self, consumer: int, number: int, key: bytes, target: int | None, nowait: bool, ahead: bool = False
    ) -> None:
        self.consumer = consumer
        self.number = number
        self.key = key
        self.target = target
        self.nowait = nowait
        self.ahead = ahead
        self.items: list[Item] = []
        self.weight = 0
        self.delivered = False

    def __repr__(self) -> str:
        return f"<Get {self.consumer}:{self.number} [{len(self.items)} items]>"


class Question:
    """Somebody wants to know what is queued under a key.

    Attributes:
        what: for the owner of the queue, who answers.
    """

    __slots__ = ("consumer", "key", "what")

    def __init__(self, consumer: int, key: bytes, what: Any) -> None:
        self.consumer = consumer
        self.key = key
        self.what = what

    def __repr__(self) -> str:
        return f"<Question of {self.consumer} [{self.what}]>"


class KeyQueue:
    """What is queued under one key, who waits to put more there, and who waits to get it.

    Attributes:
        items: in the order of their places.
        returned: what came back, a heap; all of it stands before ``items``.
        puts, gets: those who wait, first come first.
        leases: gets that were delivered and not taken.
        owner: who has sent gets ahead, where somebody has; ``ahead`` are those, waiting or delivered.
        held: what others have asked since then, in order: it is heard when the owner has given those back.
        turn: of the recall by which it was asked for them; 0 if it was not.
    """

    __slots__ = ("ahead", "gets", "held", "items", "key", "leases", "owner", "puts", "returned", "turn")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.items: deque[Item] = deque()
        self.returned: list[Item] = []
        self.puts: OrderedDict[Item, None] = OrderedDict()
        self.gets: OrderedDict[Get, None] = OrderedDict()
        self.leases = 0
        self.owner: int | None = None
        self.ahead: dict[Get, None] = {}
        self.held: dict[Get | Question, None] = {}
        self.turn = 0

    @property
    def size(self) -> int:
        return len(self.items) + len(self.returned)

    def head(self) -> Item:
        return self.returned[0] if self.returned else self.items[0]

    def pop(self) -> Item:
        return heappop(self.returned) if self.returned else self.items.popleft()

    def peek(self) -> list[Item]:
        return [*sorted(self.returned), *self.items]

    def add_ahead(self, get: Get) -> None:
        self.owner = get.consumer
        self.ahead[get] = None

    def no_longer_ahead(self, get: Get) -> None:
        get.ahead = False
        del self.ahead[get]
        if not self.ahead:
            self.owner = None
            self.turn = 0

    def is_idle(self) -> bool:
        return not (self.items or self.returned or self.gets or self.puts or self.leases)
