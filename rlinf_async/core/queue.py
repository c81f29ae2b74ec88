"""A channel's queue: keyed, weighted, bounded, leased.

Plain state.  A *party* is a process that uses the queue; it numbers what it asks for 1, 2, 3, …  Each method takes what
one party says and returns the steps that follow from it, in order, for whoever owns the queue to carry out::

    put ── room ──► ACCEPTED       get ── item ──► DELIVER: leased ── taken ──► gone
        └─ full ──► waits              └─ none ──► waits        └─ given back, or its consumer died ──► its old place

What one party puts under one key is delivered in the order of its numbers.  Keys share ``max_bytes`` and nothing else:
a key that nobody empties holds up no other.  No method takes longer because more is queued or waiting.

A producer may be granted credit (``core/credit.py``): what it pays for with that is in once it was said, and no step
tells of it.  Where the room that is set aside is wanted for others, and before the queue is closed, it is recalled.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from enum import IntEnum
from heapq import heappush
from typing import Any, Final

from rlinf_async.core.credit import Grant, Ledger, Recall
from rlinf_async.core.lane import Get, Item, Lane


class Act(IntEnum):
    """What the owner of a queue does; the comment says with what."""

    ACCEPTED = 0  # an item: it is in the queue, tell its producer
    DELIVER = 1  # a get: hand its items to its consumer
    FULL = 2  # an item: put_nowait found no room
    EMPTY = 3  # a get: get_nowait found nothing
    PARKED = 4  # an item: it waits for room, and what it carries waits with its producer
    PULL = 5  # an item: there is room now, have its producer send what it carries
    ENDED = 6  # a get: the queue is closed, and nothing will come any more
    CLOSED = 7  # an item: the queue is closed
    TOO_LARGE = 8  # an item: it has more bytes than all items together may have
    TOO_HEAVY = 9  # a batch: the next item alone weighs more than its target
    CRAMPED = 10  # a batch: what it has gathered leaves no room for the rest of it
    GRANT = 11  # a grant: its party may put so many bytes more without an answer
    RECALL = 12  # a recall: its party shall return what it was granted, or it is forfeited after a while
    LOST = 13  # an item that was paid for with what had been forfeited, when the queue was closed already


# As plain numbers: this is where every item passes.
ACCEPTED: Final = int(Act.ACCEPTED)
DELIVER: Final = int(Act.DELIVER)

Step = tuple[int, Any]

SLACK: Final = 64 << 20
"""Bytes of waiting puts that a queue holds at most."""


class Party:
    """One process, as the queue knows it."""

    __slots__ = ("cancelled", "early", "expected", "gets", "puts")

    def __init__(self) -> None:
        self.expected = 1
        self.early: dict[int, Item | Get] = {}
        """What came before its turn."""
        self.cancelled: set[int] = set()
        """Numbers that were given up before they came."""
        self.puts: dict[int, Item] = {}
        """Its items that wait for room."""
        self.gets: dict[int, Get] = {}
        """Its gets that wait, and those whose items it has not taken."""


class Queue:
    """The items of one channel on one node.

    Args:
        maxsize: items that one key may hold; 0 is without bound.  Items that come back from a consumer may exceed it.
        max_bytes: bytes that all items may have together, those included that are leased; 0 is without bound.
        gone: parties that are dead: what they have said and comes late is dropped.
        slack: bytes of waiting puts whose bodies are kept here; by default an eighth of ``max_bytes``, or ``SLACK``.
        lends_to: whether a party may have credit; by default nobody may, nor where there is a ``maxsize``.

    Example:
        queue = Queue(maxsize=2)
        queue.get(consumer, 1, b"key")                  # []: it waits
        queue.put(producer, 1, b"key", body=b"…")       # [(ACCEPTED, item), (DELIVER, get)]
        queue.taken(consumer, [1])                      # []: the item is gone
    """

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
        self.parties: dict[int, Party] = {}
        self._gone = gone
        if slack is None:
            slack = min(max_bytes // 8, SLACK) if max_bytes else SLACK
        self._slack = slack
        self._lanes: dict[bytes, Lane] = {}
        self._places = itertools.count()
        self._cramped: OrderedDict[Lane, None] = OrderedDict()
        """Whose first put waits for bytes, in the order in which they get them."""
        self._overtaken = 0
        """Bytes that were let in past the first of them: as many as ``max_bytes``, then it is its turn."""
        self._undecided: dict[Item, Lane] = {}
        """What may not wait, and has room or not when all credit is back."""
        self._gathering: dict[Get, None] = {}
        """Batches that hold items and want more."""
        self._gathered = 0
        """Their bytes."""

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Queue {state} [{len(self._lanes)} keys, {len(self.parties)} parties, {self.bytes} bytes]>"

    @property
    def finished(self) -> bool:
        """It is closed, and nothing is left in it."""
        return self.closed and not self._lanes

    # -- what parties say ---------------------------------------------------------------------------------------

    def put(
        self,
        producer: int,
        number: int,
        key: bytes,
        weight: int = 0,
        nbytes: int = 0,
        body: Any = None,
        nowait: bool = False,
        paid: int = 0,
    ) -> list[Step]:
        """An item wants to go in; without a body only its size is told, and the body is pulled when there is room.

        Args:
            paid: bytes of credit, no fewer than ``nbytes``, with which it is paid for.

        Raises:
            ValueError: the producer does not have so much credit.
        """
        return self._hear(producer, number, Item(producer, number, key, weight, nbytes, body, nowait, paid))

    def supply(self, producer: int, number: int, body: Any) -> list[Step]:
        """The body of an item that was pulled."""
        party = self.parties.get(producer)
        item = party.puts.get(number) if party is not None else None
        steps: list[Step] = []
        if item is not None and item.pulled and item.body is None:
            item.body = body
            self._run(self._lanes[item.key], steps)
        return steps

    def get(
        self, consumer: int, number: int, key: bytes, target: int | None = None, nowait: bool = False
    ) -> list[Step]:
        """One item is wanted; with a ``target``, as many as weigh that much together."""
        return self._hear(consumer, number, Get(consumer, number, key, target, nowait))

    def taken(self, consumer: int, numbers: Iterable[int]) -> list[Step]:
        """The consumer has what these gets delivered: their leases end."""
        steps: list[Step] = []
        party = self.parties.get(consumer)
        if party is None:
            return steps
        for number in numbers:
            get = party.gets.get(number)
            if get is None or not get.delivered:
                continue
            del party.gets[number]
            for item in get.items:
                self.bytes -= item.nbytes
            lane = self._lanes[get.key]
            lane.leases -= 1
            self._settle(lane, steps)
        if self._cramped:
            self._let_in(steps)
        return steps

    def cancel(self, who: int, number: int) -> list[Step]:
        """Nobody wants this put or get any more: what waits is dropped, what is leased goes back to its place."""
        party = self._party(who)
        if party is None:
            return []
        if number >= party.expected:
            party.cancelled.add(number)
            return []
        return self._withdraw([party.puts.pop(number, None)], [party.gets.pop(number, None)])

    def drop(self, who: int) -> list[Step]:
        """A party is dead: as if it had given up everything.  What it has put stays."""
        party = self.parties.pop(who, None)
        if party is None:
            return []
        steps = self._withdraw(party.puts.values(), party.gets.values())
        for _, early in sorted(party.early.items()):
            if type(early) is Item and early.paid:
                self._take_in(early, steps)
        self.ledger.drop(who)
        self._credit_is_back(steps)
        return steps

    def close(self) -> list[Step]:
        """No more puts; gets end once what was put before has been taken.

        The queue is ``closed`` when all credit is back; until then what was put with it still comes in.
        """
        steps: list[Step] = []
        if not self.closing:
            self.closing = True
            steps += [(Act.RECALL, recall) for recall in self.ledger.recall_all()]
            self._credit_is_back(steps)
        return steps

    def returned(self, who: int, amount: int, *, answers: bool = True) -> list[Step]:
        """A party gives credit back: all that it has, because it was recalled, or some that it could not use."""
        steps: list[Step] = []
        self.ledger.returned(who, amount, answers=answers)
        self._credit_is_back(steps)
        return steps

    def forfeit(self, recall: Recall) -> list[Step]:
        """A party has not heard for too long: what it had been granted is free for others.

        What it puts with that nevertheless waits for room like any other put, or is lost if the queue is closed then.
        """
        steps: list[Step] = []
        if self.ledger.forfeit(recall):
            self._credit_is_back(steps)
        return steps

    # -- questions ----------------------------------------------------------------------------------------------

    def size(self, key: bytes) -> int:
        """Items that can be had at once."""
        lane = self._lanes.get(key)
        return 0 if lane is None else lane.size

    def full(self, key: bytes) -> bool:
        """Whether a put would have to wait, were it not for its size."""
        if self.max_bytes and self.bytes >= self.max_bytes:
            return True
        return bool(self.maxsize) and self.size(key) >= self.maxsize

    def peek(self, key: bytes) -> list[Item]:
        """What is queued, in order; it stays where it is."""
        lane = self._lanes.get(key)
        return [] if lane is None else lane.peek()

    @property
    def used(self) -> list[bytes]:
        """The keys of which anything is queued, leased or waiting."""
        return list(self._lanes)

    def _party(self, who: int) -> Party | None:
        """None for one that is dead."""
        party = self.parties.get(who)
        if party is None and who not in self._gone:
            party = self.parties[who] = Party()
        return party

    # -- order --------------------------------------------------------------------------------------------------

    def _hear(self, who: int, number: int, wish: Item | Get) -> list[Step]:
        """Each wish of a party once, in the order of its numbers."""
        steps: list[Step] = []
        party = self.parties.get(who) or self._party(who)
        if party is None:
            return steps
        if number != party.expected:
            if number > party.expected:
                party.early.setdefault(number, wish)
            return steps
        following: Item | Get | None = wish
        while following is not None:
            number = party.expected
            party.expected = number + 1
            if party.cancelled and number in party.cancelled:
                party.cancelled.discard(number)
                if type(following) is Item and following.paid:
                    steps += self.returned(who, following.paid, answers=False)
            elif type(following) is Item:
                if following.paid:
                    self._take_in(following, steps)
                else:
                    self._put(party, following, steps)
            elif type(following) is Get:
                self._get(party, following, steps)
            following = party.early.pop(number + 1, None) if party.early else None
        return steps

    # -- in -----------------------------------------------------------------------------------------------------

    def _take_in(self, item: Item, steps: list[Step]) -> None:
        """What was paid for is in already, as its producer knows it."""
        covered = self.ledger.spend(item.producer, item.paid)
        if self.closed:
            steps.append((Act.LOST, item))
            return
        lane = self._lanes.get(item.key)
        if lane is None:
            lane = self._lanes[item.key] = Lane(item.key)
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

    def _lend(self, lane: Lane, producer: int, steps: list[Step]) -> None:
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

    def _put(self, party: Party, item: Item, steps: list[Step]) -> None:
        if self.closing:
            steps.append((Act.CLOSED, item))
            return
        if self.max_bytes and item.nbytes > self.max_bytes:
            steps.append((Act.TOO_LARGE, item))
            return
        lane = self._lanes.get(item.key)
        if lane is None:
            lane = self._lanes[item.key] = Lane(item.key)
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

    def _has_room(self, lane: Lane, item: Item) -> bool:
        return (not self.maxsize or lane.size < self.maxsize) and self._has_bytes(lane, item)

    def _has_bytes(self, lane: Lane, item: Item) -> bool:
        if not self.max_bytes:
            return True
        if not self._fits(item):
            return False
        first = next(iter(self._cramped), lane)
        return first is lane or self._overtaken + item.nbytes <= self.max_bytes

    def _fits(self, item: Item) -> bool:
        return self.bytes + self.ledger.outstanding + item.nbytes <= self.max_bytes

    def _reserve(self, lane: Lane, item: Item) -> None:
        self.bytes += item.nbytes
        if self._cramped and next(iter(self._cramped)) is not lane:
            self._overtaken += item.nbytes

    def _accept(self, lane: Lane, item: Item, steps: list[Step]) -> None:
        if not item.pulled:
            self._reserve(lane, item)
        item.place = next(self._places)
        lane.items.append(item)
        if not item.paid:
            steps.append((ACCEPTED, item))
            if self.ledger.window:
                self._lend(lane, item.producer, steps)

    def _admit(self, lane: Lane, steps: list[Step]) -> bool:
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

    def _refuse(self, lane: Lane, item: Item, steps: list[Step]) -> None:
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

    def _uncramp(self, lane: Lane) -> None:
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

    # -- out ----------------------------------------------------------------------------------------------------

    def _get(self, party: Party, get: Get, steps: list[Step]) -> None:
        lane = self._lanes.get(get.key)
        if lane is None:
            lane = self._lanes[get.key] = Lane(get.key)
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
            self._strike(lane, get)
            del party.gets[get.number]
            steps.append((Act.EMPTY, get))
            self._settle(lane, steps)

    def _run(self, lane: Lane, steps: list[Step]) -> None:
        """Gets meet items, and waiting puts take their places, until nothing moves any more."""
        self._match(lane, steps)
        while lane.puts and self._admit(lane, steps):
            self._match(lane, steps)
        if not lane.items:
            self._settle(lane, steps)

    def _match(self, lane: Lane, steps: list[Step]) -> None:
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

    def _lease(self, lane: Lane, get: Get, steps: list[Step]) -> None:
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

    def _strike(self, lane: Lane, get: Get) -> None:
        """A get waits no more."""
        del lane.gets[get]
        if get in self._gathering:
            del self._gathering[get]
            self._gathered -= sum(item.nbytes for item in get.items)

    # -- back ---------------------------------------------------------------------------------------------------

    def _withdraw(self, puts: Iterable[Item | None], gets: Iterable[Get | None]) -> list[Step]:
        """Takes out what waits and returns what is leased; only when all is back, others may have it."""
        steps: list[Step] = []
        touched: dict[Lane, None] = {}
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

    def _settle(self, lane: Lane, steps: list[Step]) -> None:
        """Ends the gets of a closed queue that nothing can reach any more, and forgets a key that nobody uses."""
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
                    steps.append((Act.ENDED, get))
        if lane.is_idle():
            self._lanes.pop(lane.key, None)
            if lane in self._cramped:
                self._uncramp(lane)

    def _may_yet_come(self, lane: Lane, get: Get) -> bool:
        """Whether somebody else holds a lease of something that may come back."""
        own = self.parties[get.consumer].gets.values()
        leased = lane.leases - sum(other.delivered and other.key == lane.key for other in own)
        return leased > 0
