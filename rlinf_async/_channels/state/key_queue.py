"""The FIFO of one key in a channel's queue: matches items with waiting gets, redelivers returned items."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Set
from heapq import heappop, heappush

from rlinf_async._channels.state.actions import DELIVER, Step
from rlinf_async._channels.state.byte_budget import ByteBudget
from rlinf_async._channels.state.queue_client import Demand, Item


class KeyQueue:
    """The items, puts and gets of one key.

    Attributes:
        items: items in the order of their places.
        returned: heap of returned items, all of which precede ``items``.
        puts, gets: waiting requests, in order of arrival.
        handed_out: number of delivered gets, including leases, whose items have not all been taken.
        handed_out_items: number of items of these gets.
        put, got: numbers of accepted and taken items.
    """

    __slots__ = (
        *("_consumers", "gets", "got", "handed_out", "handed_out_items", "items", "key", "put", "puts", "returned"),
    )

    def __init__(self, key: bytes, consumers: Set[int]) -> None:
        self.key = key
        self._consumers = consumers
        self.items: deque[Item] = deque()
        self.returned: list[Item] = []
        self.puts: OrderedDict[Item, None] = OrderedDict()
        self.gets: OrderedDict[Demand, None] = OrderedDict()
        self.handed_out = self.handed_out_items = 0
        self.put = self.got = 0

    @property
    def present(self) -> int:
        """Return the number of items that are queued, gathered for a batch, or leased."""
        return self.size + self.handed_out_items + sum(len(get.items) for get in self.gets)

    @property
    def size(self) -> int:
        return len(self.items) + len(self.returned)

    def peek(self) -> list[Item]:
        return [*sorted(self.returned), *self.items]

    def is_idle(self) -> bool:
        return not (self.items or self.returned or self.gets or self.puts or self.handed_out)

    # -- matching -----------------------------------------------------------------------------------------------

    def match(self, budget: ByteBudget, steps: list[Step]) -> Demand | None:
        """Hand items to waiting gets until the items or the gets run out.

        Returns:
            A batch whose next item alone exceeds its target, if there is one. Its target is now that item's weight, and
            it no longer waits. The remaining requests have not been matched.
        """
        while self.gets and (self.items or self.returned):
            get = next(iter(self.gets))
            if get.target is None:
                get.items.append(self._pop())
            elif get.partly:
                self._gather_some(get)
            else:
                head = self.returned[0] if self.returned else self.items[0]
                weight = 1 if get.counted else head.weight
                if get.weight + weight <= get.target:
                    budget.gather(get, self._pop(), weight)
                    if get.weight < get.target:
                        continue
                elif not get.items:
                    self.remove_get(get, budget)
                    get.weight = head.weight
                    return get
            self.remove_get(get, budget)
            self.hand_out(get, steps)
        return None

    def serve(self, get: Demand, steps: list[Step]) -> None:
        if get.partly:
            self._gather_some(get)
        else:
            get.items.append(self._pop())
        self.hand_out(get, steps)

    def _gather_some(self, get: Demand) -> None:
        assert get.target is not None
        others = get.shared and (len(self._consumers) > 1 or len(self.gets) > 1)
        get.items = [self._pop() for _ in range(1 if others else min(get.target, self.size))]

    def hand_out(self, get: Demand, steps: list[Step]) -> None:
        if len(get.items) > 1:
            get.items.sort()  # an item with an earlier place may have been added later
        get.delivered = True
        self.handed_out += 1
        self.handed_out_items += len(get.items)
        steps.append((DELIVER, get))

    def remove_get(self, get: Demand, budget: ByteBudget) -> None:
        del self.gets[get]
        if get in budget.partial:
            budget.no_longer_partial(get)

    def give_back(self, get: Demand, budget: ByteBudget) -> None:
        """End a get and return its items to their old places, flagged if the consumer may have seen them."""
        if get.delivered:
            self.handed_out -= 1
            self.handed_out_items -= len(get.items)
        else:
            self.remove_get(get, budget)
        for item in get.items:
            item.redelivered = item.redelivered or get.delivered
            heappush(self.returned, item)

    def _pop(self) -> Item:
        return heappop(self.returned) if self.returned else self.items.popleft()
