"""The way out of a channel's queue: gets meet items, leases end or come back, and at last there is an end."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappush

from rlinf_async._channels.state.actions import DELIVER, Act, Step
from rlinf_async._channels.state.intake import Intake
from rlinf_async._channels.state.key_queue import Get, Item, KeyQueue
from rlinf_async._channels.state.queue_client import QueueClient


class Outlet(Intake):
    """What becomes of gets; of those that were sent ahead (``_channels/state/ahead.py``) only that some are."""

    def _hear_held(self, lane: KeyQueue, steps: list[Step]) -> None:
        """What was held up by gets that somebody had sent ahead, now that it has none."""
        raise NotImplementedError

    # -- out ----------------------------------------------------------------------------------------------------

    def _get(self, party: QueueClient, get: Get, steps: list[Step]) -> None:
        lane = self._lanes.get(get.key)
        if lane is None:
            lane = self._lanes[get.key] = KeyQueue(get.key)
        party.gets[get.number] = get
        if get.target is None and not lane.gets and lane.size:
            get.items.append(lane.pop())
            self._lease(lane, get, steps)
            if lane.puts:
                self._run(lane, steps)
            return
        lane.gets[get] = None
        self._run(lane, steps)
        if get.nowait and get in lane.gets:
            del party.gets[get.number]
            steps.append((Act.EMPTY, get))
            steps += self._withdraw([], [get])

    def _run(self, lane: KeyQueue, steps: list[Step]) -> None:
        """Gets meet items, and waiting puts take their places, until nothing moves any more."""
        self._match(lane, steps)
        while lane.puts and self._admit(lane, steps):
            self._match(lane, steps)
        if not lane.items:
            self._settle(lane, steps)

    def _match(self, lane: KeyQueue, steps: list[Step]) -> None:
        while lane.gets and lane.size:
            get = next(iter(lane.gets))
            if get.target is None:
                get.items.append(lane.pop())
            else:
                head = lane.head()
                if get.weight + head.weight <= get.target:
                    self._gather(get, lane.pop())
                    if get.weight < get.target:
                        continue
                elif not get.items:
                    self._strike(lane, get)
                    del self.parties[get.consumer].gets[get.number]
                    get.weight = head.weight
                    steps.append((Act.TOO_HEAVY, get))
                    continue
            self._strike(lane, get)
            self._lease(lane, get, steps)

    def _lease(self, lane: KeyQueue, get: Get, steps: list[Step]) -> None:
        if len(get.items) > 1:
            get.items.sort()  # something may have come back while it was gathering
        get.delivered = True
        lane.leases += 1
        steps.append((DELIVER, get))

    def _gather(self, get: Get, item: Item) -> None:
        get.items.append(item)
        get.weight += item.weight
        self._gathering[get] = None
        self._gathered += item.nbytes

    def _strike(self, lane: KeyQueue, get: Get) -> None:
        """A get waits no more."""
        del lane.gets[get]
        if get in self._gathering:
            del self._gathering[get]
            self._gathered -= sum(item.nbytes for item in get.items)

    # -- back ---------------------------------------------------------------------------------------------------

    def _withdraw(self, puts: Iterable[Item | None], gets: Iterable[Get | None]) -> list[Step]:
        """Takes out what waits and returns what is leased; only when all is back, others may have it."""
        steps: list[Step] = []
        touched: dict[KeyQueue, None] = {}
        for item in puts:
            if item is not None:
                lane = self._lanes[item.key]
                del lane.puts[item]
                touched[lane] = None
                if item.pulled:
                    self.bytes -= item.nbytes
                elif item.body is not None:
                    self.waiting_bytes -= item.nbytes
        for get in gets:
            if get is not None:
                lane = self._lanes[get.key]
                touched[lane] = None
                if get in lane.held:
                    del lane.held[get]  # which has nothing yet, whether it was sent ahead or not
                    continue
                if get.ahead:
                    lane.no_longer_ahead(get)
                if get.delivered:
                    lane.leases -= 1
                else:
                    self._strike(lane, get)
                for item in get.items:
                    item.redelivered = item.redelivered or get.delivered
                    heappush(lane.returned, item)
        for lane in touched:
            self._run(lane, steps)
            self._settle(lane, steps)
        if self._cramped:
            self._let_in(steps)
        return steps

    # -- the end ------------------------------------------------------------------------------------------------

    def _settle(self, lane: KeyQueue, steps: list[Step]) -> None:
        """Ends the gets of a closed queue that nothing can reach any more, and forgets a key that nobody uses."""
        if lane.held and lane.owner is None:
            self._hear_held(lane, steps)
        if self.closed and lane.gets and not lane.size and not lane.puts:
            for get in list(lane.gets):
                if self._may_yet_come(lane, get):
                    if get.items:
                        break  # what it has gathered may yet come to those behind it
                    continue
                self._strike(lane, get)
                if get.items:
                    self._lease(lane, get, steps)
                else:
                    del self.parties[get.consumer].gets[get.number]
                    if get.ahead:
                        lane.no_longer_ahead(get)
                    steps.append((Act.ENDED, get))
            if lane.held and lane.owner is None:
                self._hear_held(lane, steps)
        if lane.is_idle() and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]
            if lane in self._cramped:
                self._uncramp(lane)

    def _may_yet_come(self, lane: KeyQueue, get: Get) -> bool:
        """Whether somebody else holds a lease of something that may come back."""
        own = self.parties[get.consumer].gets.values()
        leased = lane.leases - sum(other.delivered and other.key == lane.key for other in own)
        return leased > 0
