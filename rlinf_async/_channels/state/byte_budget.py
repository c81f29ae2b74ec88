"""The byte budget of a channel's queue: room shared by its keys, and the order in which keys wait for room."""

from __future__ import annotations

from collections import OrderedDict

from rlinf_async._channels.state.queue_client import Demand, Item


class ByteBudget:
    """The bytes used by one queue's items, and the keys that are blocked for lack of room.

    A key whose first put does not fit is *blocked*. Blocked keys get room in order. Smaller items of other keys may
    overtake blocked keys until ``max_bytes`` bytes have overtaken the first blocked key; after that, the first blocked
    key is next.

    Attributes:
        max_bytes: bound for all items together; 0 means no bound.
        used: bytes of queued and leased items.
        blocked: blocked keys, in the order in which they get room.
        partial: batches that hold items while they wait for more.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        self.used = 0
        self.blocked: OrderedDict[bytes, None] = OrderedDict()
        self.partial: dict[Demand, None] = {}
        self._partial_bytes = 0
        self._overtaken = 0

    def __repr__(self) -> str:
        return f"<ByteBudget [{self.used} of {self.max_bytes} bytes, {len(self.blocked)} keys blocked]>"

    def fits(self, nbytes: int) -> bool:
        return self.used + nbytes <= self.max_bytes

    def allows(self, key: bytes, nbytes: int) -> bool:
        if not self.max_bytes:
            return True
        if self.used + nbytes > self.max_bytes:
            return False
        blocked = self.blocked
        return not blocked or next(iter(blocked)) == key or self._overtaken + nbytes <= self.max_bytes

    def reserve(self, key: bytes, nbytes: int) -> None:
        self.used += nbytes
        if self.blocked and next(iter(self.blocked)) != key:
            self._overtaken += nbytes

    def unblock(self, key: bytes) -> None:
        if next(iter(self.blocked)) == key:
            self._overtaken = 0
        del self.blocked[key]

    # -- batches ------------------------------------------------------------------------------------------------

    def gather(self, get: Demand, item: Item, weight: int) -> None:
        """Add an item of ``weight`` to a batch that may wait for more."""
        get.items.append(item)
        get.weight += weight
        self.partial[get] = None
        self._partial_bytes += item.nbytes

    def no_longer_partial(self, get: Demand) -> None:
        del self.partial[get]
        self._partial_bytes -= sum(item.nbytes for item in get.items)

    @property
    def deadlocked(self) -> bool:
        """True if batches that wait for more hold every byte."""
        return bool(self.partial) and self._partial_bytes == self.used
