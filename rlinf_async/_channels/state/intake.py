"""The way into a channel's queue: room, credit, and the order of those who wait for some."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from typing import Final

from rlinf_async._channels.state.actions import ACCEPTED, Act, Step
from rlinf_async._channels.state.credit import Grant, Ledger
from rlinf_async._channels.state.key_queue import Get, Item, KeyQueue
from rlinf_async._channels.state.queue_client import QueueClient

SLACK: Final = 64 << 20
"""Bytes of waiting puts that a queue holds at most."""


class Intake:
    """The state of a queue (``_channels/state/queue.py``), and what becomes of puts; the way out is not known here."""

    def __init__(
        self,
        maxsize: int = 0,
        max_bytes: int = 0,
        gone: Container[int] = (),
        slack: int | None = None,
        lends_to: Callable[[int], bool] | None = None,
    ) -> None:
        self.maxsize = maxsize
        self.max_bytes = max_bytes
        self.closing = False
        """No more puts, but for what was put with credit and has not come in yet."""
        self.closed = False
        self.ledger = Ledger(max_bytes, None if maxsize else lends_to)
        self.bytes = 0
        """Of what is queued or leased, and of what has been promised room."""
        self.waiting_bytes = 0
        """Of what waits for room and is held here nevertheless."""
        self.parties: dict[int, QueueClient] = {}
        self._gone = gone
        if slack is None:
            slack = min(max_bytes // 16, SLACK) if max_bytes else SLACK
        self._slack = slack
        self._lanes: dict[bytes, KeyQueue] = {}
        self._places = itertools.count()
        self._cramped: OrderedDict[KeyQueue, None] = OrderedDict()
        """Whose first put waits for bytes, in the order in which they get them."""
        self._overtaken = 0
        """Bytes that were let in past the first of them: as many as ``max_bytes``, then it is its turn."""
        self._undecided: dict[Item, KeyQueue] = {}
        """What may not wait, and has room or not when all credit is back."""
        self._gathering: dict[Get, None] = {}
        """Batches that hold items and want more."""
        self._gathered = 0
        """Their bytes."""

    # -- the way out --------------------------------------------------------------------------------------------

    def _run(self, lane: KeyQueue, steps: list[Step]) -> None:
        """Gets meet items, and waiting puts take their places, until nothing moves any more."""
        raise NotImplementedError

    def _settle(self, lane: KeyQueue, steps: list[Step]) -> None:
        """Ends the gets of a closed queue that nothing can reach any more, and forgets a key that nobody uses."""
        raise NotImplementedError

    def _withdraw(self, puts: Iterable[Item | None], gets: Iterable[Get | None]) -> list[Step]:
        """Takes out what waits and returns what is leased; only when all is back, others may have it."""
        raise NotImplementedError

    def _party(self, who: int) -> QueueClient | None:
        """None for one that is dead."""
        party = self.parties.get(who)
        if party is None and who not in self._gone:
            party = self.parties[who] = QueueClient()
        return party

    # -- in -----------------------------------------------------------------------------------------------------

    def _take_in(self, item: Item, steps: list[Step]) -> None:
        """What was paid for is in already, as its producer knows it."""
        try:
            covered = self.ledger.spend(item.producer, item.paid)
        except ValueError:
            # A lie, or what a party that is gone had said out of turn.  It must not end what others are told here.
            steps.append((Act.LOST, item))
            return
        if self.closed:
            steps.append((Act.LOST, item))
            return
        lane = self._lanes.get(item.key)
        if lane is None:
            lane = self._lanes[item.key] = KeyQueue(item.key)
        if covered and not lane.puts:
            self._accept(lane, item, steps)
            if lane.gets:
                self._run(lane, steps)
        else:
            # Behind those who wait: their room may be what it gives up thereby.
            lane.puts[item] = None
            self.waiting_bytes += item.nbytes
            self._run(lane, steps)
        if covered:
            self._lend(lane, item.producer, steps)
            if self._cramped or self.closing:
                self._credit_is_back(steps)

    def _lend(self, lane: KeyQueue, producer: int, steps: list[Step]) -> None:
        if lane.puts or self._cramped or self.closing or producer not in self.parties:
            return
        amount = self.ledger.lend(producer, self.bytes + self.waiting_bytes)
        if amount:
            steps.append((Act.GRANT, Grant(producer, amount)))

    def _credit_is_back(self, steps: list[Step]) -> None:
        """Some of it."""
        if self._undecided and not self.ledger.outstanding:
            undecided, self._undecided = self._undecided, {}
            for item, lane in undecided.items():
                if item in lane.puts:
                    self._run(lane, steps)
                    self._settle(lane, steps)
        if self._cramped:
            self._let_in(steps)
        if self.closing and not self.closed and not self.ledger.outstanding:
            self.closed = True
            for lane in list(self._lanes.values()):
                self._settle(lane, steps)

    def _put(self, party: QueueClient, item: Item, steps: list[Step]) -> None:
        if self.closing:
            steps.append((Act.CLOSED, item))
            return
        if self.max_bytes and item.nbytes > self.max_bytes:
            steps.append((Act.TOO_LARGE, item))
            return
        lane = self._lanes.get(item.key)
        if lane is None:
            lane = self._lanes[item.key] = KeyQueue(item.key)
        if item.body is not None and not lane.puts and self._has_room(lane, item):
            self._accept(lane, item, steps)
            if lane.gets:
                self._run(lane, steps)
            return
        may_enter = not lane.puts and (self.ledger.outstanding or (item.body is None and self._has_room(lane, item)))
        if item.nowait and not may_enter:
            steps.append((Act.FULL, item))
            self._settle(lane, steps)
            return
        lane.puts[item] = None
        party.puts[item.number] = item
        if item.body is not None:
            if self.waiting_bytes + self.ledger.outstanding + item.nbytes > self._slack:
                item.body = None
                steps.append((Act.PARKED, item))
            else:
                self.waiting_bytes += item.nbytes
        self._run(lane, steps)

    def _has_room(self, lane: KeyQueue, item: Item) -> bool:
        return (not self.maxsize or lane.size < self.maxsize) and self._has_bytes(lane, item)

    def _has_bytes(self, lane: KeyQueue, item: Item) -> bool:
        if not self.max_bytes:
            return True
        if not self._fits(item):
            return False
        first = next(iter(self._cramped), lane)
        return first is lane or self._overtaken + item.nbytes <= self.max_bytes

    def _fits(self, item: Item) -> bool:
        return self.bytes + self.ledger.outstanding + item.nbytes <= self.max_bytes

    def _reserve(self, lane: KeyQueue, item: Item) -> None:
        self.bytes += item.nbytes
        if self._cramped and next(iter(self._cramped)) is not lane:
            self._overtaken += item.nbytes

    def _accept(self, lane: KeyQueue, item: Item, steps: list[Step]) -> None:
        if not item.pulled:
            self._reserve(lane, item)
        item.place = next(self._places)
        lane.items.append(item)
        if not item.paid:
            steps.append((ACCEPTED, item))
            if self.ledger.window:
                self._lend(lane, item.producer, steps)

    def _admit(self, lane: KeyQueue, steps: list[Step]) -> bool:
        """Lets the first waiting put of a key in, if it may; whether it did."""
        item = next(iter(lane.puts))
        if self.maxsize and lane.size >= self.maxsize:
            return False
        if not item.pulled:
            if not self._has_bytes(lane, item):
                if item.nowait and not self.ledger.outstanding:
                    self._refuse(lane, item, steps)
                    return True
                if item.nowait:
                    self._undecided[item] = lane
                self._cramped.setdefault(lane)
                self._relieve(steps)
                return False
            if item.body is None:
                self._reserve(lane, item)
                item.pulled = True
                steps.append((Act.PULL, item))
                return False
            self.waiting_bytes -= item.nbytes
        elif item.body is None:
            return False
        del lane.puts[item]
        party = self.parties.get(item.producer)
        if party is not None:
            party.puts.pop(item.number, None)
        self._accept(lane, item, steps)
        return True

    def _refuse(self, lane: KeyQueue, item: Item, steps: list[Step]) -> None:
        """There is no room for it at once, not even with all credit back."""
        del lane.puts[item]
        party = self.parties.get(item.producer)
        if party is not None:
            party.puts.pop(item.number, None)
        if item.body is not None:
            self.waiting_bytes -= item.nbytes
        steps.append((Act.FULL, item))

    def _let_in(self, steps: list[Step]) -> None:
        """Bytes are free: those who wait for some, in their order."""
        while self._cramped:
            lane = next(iter(self._cramped))
            item = next(iter(lane.puts), None)
            waits = item is not None and not item.pulled and not (self.maxsize and lane.size >= self.maxsize)
            if item is not None and waits and not self._fits(item):
                self._relieve(steps)
                return
            self._uncramp(lane)
            if waits:
                self._run(lane, steps)

    def _uncramp(self, lane: KeyQueue) -> None:
        if next(iter(self._cramped)) is lane:
            self._overtaken = 0
        del self._cramped[lane]

    def _relieve(self, steps: list[Step]) -> None:
        """Credit is recalled; where every byte is held by batches that want more, one of them has to give up."""
        if self.ledger.outstanding:
            steps += [(Act.RECALL, recall) for recall in self.ledger.recall()]
            return
        if self._gathering and self._gathered == self.bytes:
            get = next(iter(self._gathering))
            del self.parties[get.consumer].gets[get.number]
            steps.append((Act.CRAMPED, get))
            steps += self._withdraw([], [get])
