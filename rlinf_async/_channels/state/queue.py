"""State machine of a channel's queue: keyed FIFOs with weighted batches, bounds, credit, and leases of items.

Plain state.  Each client of the queue, a process, numbers its requests 1, 2, 3, …  Each method takes a message of one
client and returns the steps that follow from it, in order, for the owner of the queue to carry out::

    put ── room ──► ACCEPTED       get ── item ──► DELIVER: leased ── taken ──► gone
        └─ full ──► waits              └─ none ──► waits        └─ given back, or its consumer died ──► its old place

It is made of a table of keys (``key_queue.py``), which share a byte budget (``byte_budget.py``) and nothing else: a key
that no consumer empties holds up no other.  Items that one client puts under one key are delivered in the order of
their numbers.  No method takes longer because more is queued or waiting.

A producer may be granted credit (``credit.py``): an item that it pays for with that is in once it was sent, and no step
tells of it.  Where the room that is set aside is wanted for others, and before the queue is closed, it is recalled.

A gate may keep gets back before they enter, as ``prefetch.py`` does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable
from typing import Any, Protocol

from rlinf_async._channels.state.actions import ACCEPTED, Act, Step
from rlinf_async._channels.state.byte_budget import ByteBudget
from rlinf_async._channels.state.credit import Grant, Ledger, Recall
from rlinf_async._channels.state.key_queue import KeyQueue
from rlinf_async._channels.state.queue_client import Get, Item, QueueClient
from rlinf_async._channels.state.queue_counts import DISCARDED, TOO_LATE, QueueCounts


class Gate(Protocol):
    """Keeps requests back before they enter a queue, and moves them to ``queue.released`` when they may."""

    def admits(self, request: Any, steps: list[Step]) -> bool:
        """Whether a get enters now, in its client's order; asked again when it has been released."""

    def left(self, get: Get) -> bool:
        """A get that is ``gated`` is over; False if it had been kept back."""

    def discard(self, steps: list[Step]) -> None:
        """The queue is empty and at its end."""


class Queue:
    """The items of one channel on one node.

    Args:
        maxsize: items that one key may hold; 0 is without bound.  Items that come back from a consumer may exceed it.
        max_bytes: bytes that all items may have together, those included that are leased; 0 is without bound.
        gone: clients that are dead: messages of theirs that come late are dropped.
        max_buffered: bytes of waiting puts whose bodies are kept here; by default a sixteenth of ``max_bytes``, or
            ``MAX_BUFFERED_BYTES``.
        lends_to: whether a client may have credit; by default none may, nor where there is a ``maxsize``.

    Attributes:
        closing: no more puts, but for items that were put with credit and have not come in yet.
        released: requests that the gate had kept back, by key: they enter before anything else happens under it.

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
        max_buffered: int | None = None,
        lends_to: Callable[[int], bool] | None = None,
    ) -> None:
        self.maxsize = maxsize
        self.closing = False
        self.closed = False
        self.ledger = Ledger(max_bytes, None if maxsize else lends_to)
        self.budget = ByteBudget(max_bytes, max_buffered, self.ledger)
        self.clients: dict[int, QueueClient] = {}
        self.gate: Gate | None = None
        self.released: dict[bytes, Iterable[Any]] = {}
        self._gone = gone
        self._keys: dict[bytes, KeyQueue] = {}
        self._places = itertools.count()
        self._counts = QueueCounts()
        """Of keys that are not used any more."""
        self._undecided: dict[Item, KeyQueue] = {}
        """Puts that may not wait, and have room or not when all credit is back."""

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Queue {state} [{len(self._keys)} keys, {len(self.clients)} clients, {self.budget.used} bytes]>"

    @property
    def finished(self) -> bool:
        """It is closed, and nothing is left in it."""
        return self.closed and not self._keys

    # -- messages of clients ------------------------------------------------------------------------------------

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
        """Puts an item; without a body only its size is announced, and the body is pulled when there is room.

        Args:
            paid: bytes of credit, no fewer than ``nbytes``, with which it is paid for; where the producer does not
                have so much, the item is lost.
        """
        return self._in_order(producer, number, Item(producer, number, key, weight, nbytes, body, nowait, paid))

    def supply(self, producer: int, number: int, body: Any) -> list[Step]:
        """The body of an item that was pulled."""
        client = self.clients.get(producer)
        item = client.puts.get(number) if client is not None else None
        steps: list[Step] = []
        if item is not None and item.pulled and item.body is None:
            item.body = body
            self._run(self._keys[item.key], steps)
            self._avoid_deadlock(steps)
        return steps

    def get(
        self,
        consumer: int,
        number: int,
        key: bytes,
        target: int | None = None,
        nowait: bool = False,
        counted: bool = False,
        partly: bool = False,
        prefetched: bool = False,
    ) -> list[Step]:
        """Gets one item; with a ``target``, as many as weigh that much together, or so many if it is ``counted``.

        Args:
            partly: what is there is enough, however little; where nothing is there, it is refused as empty.
            prefetched: no caller of the consumer has asked for it yet; only one without a target may be.
        """
        return self._in_order(consumer, number, Get(consumer, number, key, target, nowait, counted, partly, prefetched))

    def skip(self, who: int, number: int, paid: int = 0) -> list[Step]:
        """A request that makes no sense: it counts as given up.  ``paid`` is the credit that it has cost."""
        steps = self.cancel(who, number)
        return steps + self._in_order(who, number, Item(who, number, b"", 0, 0, None, True, paid))

    def taken(self, consumer: int, numbers: Iterable[int]) -> list[Step]:
        """The consumer has the items that these gets delivered: their leases end."""
        steps: list[Step] = []
        client = self.clients.get(consumer)
        if client is None:
            return steps
        for number in numbers:
            get = client.gets.get(number)
            if get is None or not get.delivered:
                continue
            del client.gets[number]
            for item in get.items:
                self.budget.used -= item.nbytes
            key_queue = self._keys[get.key]
            key_queue.leases -= 1
            key_queue.leased -= len(get.items)
            key_queue.got += len(get.items)
            if get.gated:
                self._has_left(get)
            self._settle(key_queue, steps)
        if self.budget.blocked:
            self._unblock(steps)
        return steps

    def cancel(self, who: int, *numbers: int) -> list[Step]:
        """These puts and gets are given up: those that wait are dropped, leased items go back to their places."""
        client = self.client(who)
        steps: list[Step] = []
        if client is None:
            return steps
        early = [number for number in numbers if number >= client.expected]
        client.cancelled.update(early)
        if len(early) < len(numbers):
            puts = [client.puts.pop(number) for number in numbers if number in client.puts]
            gets = [client.gets.pop(number) for number in numbers if number in client.gets]
            self._withdraw(puts, gets, steps)
        return steps

    def drop(self, who: int) -> list[Step]:
        """A client is dead: as if it had given up everything.  Its items stay."""
        steps: list[Step] = []
        client = self.clients.pop(who, None)
        if client is None:
            return steps
        self._withdraw(client.puts.values(), client.gets.values(), steps)
        for _, early in sorted(client.early.items()):
            if type(early) is Item and early.paid:
                self._put_on_credit(early, steps)
        self.ledger.drop(who)
        self._credit_is_back(steps)
        return steps

    def close(self, *, discard: bool = False) -> list[Step]:
        """No more puts, not even of those that wait for room; gets end once all items have been taken.

        The queue is ``closed`` when all credit is back; until then items that were put with it still come in.

        Args:
            discard: throw away all items, of a queue that was closed before, too: then it is ``closed`` at once.
        """
        steps: list[Step] = []
        if not self.closing:
            self.closing = True
            waiting = [item for key_queue in self._keys.values() for item in key_queue.puts if not item.paid]
            for item in waiting:
                del self.clients[item.producer].puts[item.number]
                steps.append((Act.CLOSED, item))
            self._withdraw(waiting, [], steps)
            if not discard:
                steps += [(Act.RECALL, recall) for recall in self.ledger.recall_all()]
        if discard:
            self._discard(steps)
        self._credit_is_back(steps)
        return steps

    def returned(self, who: int, amount: int, *, answers: bool = True) -> list[Step]:
        """A client gives credit back: all that it has, because it was recalled, or some that it could not use."""
        steps: list[Step] = []
        self.ledger.returned(who, amount, answers=answers)
        self._credit_is_back(steps)
        return steps

    def forfeit(self, recall: Recall) -> list[Step]:
        """A client has not answered for too long: credit that it had been granted is free for others.

        An item that it pays for with that nevertheless waits for room like any other, or is lost if the queue is closed
        then.
        """
        steps: list[Step] = []
        if self.ledger.forfeit(recall):
            self._credit_is_back(steps)
        return steps

    # -- questions ----------------------------------------------------------------------------------------------

    def size(self, key: bytes) -> int:
        """Items that can be had at once."""
        key_queue = self._keys.get(key)
        return 0 if key_queue is None else key_queue.size

    def full(self, key: bytes) -> bool:
        """Whether a put would have to wait, were it not for its size."""
        if self.budget.max_bytes and self.budget.used >= self.budget.max_bytes:
            return True
        return bool(self.maxsize) and self.size(key) >= self.maxsize

    def waiting(self, key: bytes) -> tuple[int, int]:
        """How many puts and gets wait under a key."""
        key_queue = self._keys.get(key)
        return (0, 0) if key_queue is None else (len(key_queue.puts), len(key_queue.gets))

    def peek(self, key: bytes) -> list[Item]:
        """The queued items, in order; they stay where they are."""
        key_queue = self._keys.get(key)
        return [] if key_queue is None else key_queue.peek()

    def counts(self) -> QueueCounts:
        """What has become of all items."""
        whole = self._counts
        found = QueueCounts(whole.put, whole.got, dict(whole.dropped))
        for key, key_queue in self._keys.items():
            present = key_queue.present
            found.put += key_queue.put
            found.got += key_queue.got
            found.present += present
            if present:
                found.keys[key] = key_queue.put, key_queue.got, present
        return found

    @property
    def used(self) -> list[bytes]:
        """The keys of which anything is queued, leased or waiting."""
        return list(self._keys)

    # -- clients and their order --------------------------------------------------------------------------------

    def client(self, who: int) -> QueueClient | None:
        """None for one that is dead."""
        client = self.clients.get(who)
        if client is None and who not in self._gone:
            client = self.clients[who] = QueueClient()
        return client

    def _in_order(self, who: int, number: int, request: Item | Get) -> list[Step]:
        """Each request of a client once, in the order of its numbers."""
        steps: list[Step] = []
        client = self.clients.get(who) or self.client(who)
        if client is None:
            return steps
        if number != client.expected:
            if number > client.expected:
                client.early.setdefault(number, request)
            return steps
        following: Item | Get | None = request
        while following is not None:
            number = client.expected
            client.expected = number + 1
            if client.cancelled and number in client.cancelled:
                client.cancelled.discard(number)
                if type(following) is Item and following.paid:
                    steps += self.returned(who, following.paid, answers=False)
            elif type(following) is Get:
                client.gets[number] = following
                if self.gate is None or self.gate.admits(following, steps):
                    self.enter(following, steps)
            elif type(following) is Item:
                if following.paid:
                    self._put_on_credit(following, steps)
                else:
                    self._put(client, following, steps)
            following = client.early.pop(number + 1, None) if client.early else None
        return steps

    def _new_key(self, key: bytes) -> KeyQueue:
        key_queue = self._keys[key] = KeyQueue(key)
        return key_queue

    # -- puts ---------------------------------------------------------------------------------------------------

    def _put(self, client: QueueClient, item: Item, steps: list[Step]) -> None:
        budget = self.budget
        if self.closing:
            steps.append((Act.CLOSED, item))
            return
        if budget.max_bytes and item.nbytes > budget.max_bytes:
            steps.append((Act.TOO_LARGE, item))
            return
        key_queue = self._keys.get(item.key) or self._new_key(item.key)
        has_room = not key_queue.puts and self._has_room(key_queue, item)
        if has_room and item.body is not None:
            self._accept(key_queue, item, steps)
            if key_queue.gets:
                self._run(key_queue, steps)
            return
        if item.nowait and not (has_room or (self.ledger.outstanding and not key_queue.puts)):
            steps.append((Act.FULL, item))
            self._settle(key_queue, steps)
            return
        key_queue.puts[item] = None
        client.puts[item.number] = item
        if item.body is not None and not budget.buffer(item.nbytes):
            item.body = None
            steps.append((Act.PARKED, item))
        self._run(key_queue, steps)

    def _put_on_credit(self, item: Item, steps: list[Step]) -> None:
        """An item that was paid for is in already, as its producer knows it."""
        try:
            covered = self.ledger.spend(item.producer, item.paid)
        except ValueError:
            # A lie, or a message out of turn of a client that is gone.  It must not end what others are told here.
            steps.append((Act.LOST, item))
            return
        if self.closed:
            self._counts.put += 1
            self._counts.drop(TOO_LATE)
            steps.append((Act.LOST, item))
            return
        key_queue = self._keys.get(item.key) or self._new_key(item.key)
        if covered and not key_queue.puts:
            self._accept(key_queue, item, steps)
            if key_queue.gets:
                self._run(key_queue, steps)
        else:
            # Behind those that wait: their room may be what it gives up thereby.
            key_queue.puts[item] = None
            self.budget.buffered += item.nbytes
            self._run(key_queue, steps)
        if covered:
            self._lend(key_queue, item.producer, steps)
            if self.budget.blocked or self.closing:
                self._credit_is_back(steps)

    def _has_room(self, key_queue: KeyQueue, item: Item) -> bool:
        return (not self.maxsize or key_queue.size < self.maxsize) and self.budget.allows(item.key, item.nbytes)

    def _accept(self, key_queue: KeyQueue, item: Item, steps: list[Step]) -> None:
        if not item.pulled:
            self.budget.reserve(item.key, item.nbytes)
        item.place = next(self._places)
        key_queue.items.append(item)
        key_queue.put += 1
        if not item.paid:
            steps.append((ACCEPTED, item))
            if self.ledger.window:
                self._lend(key_queue, item.producer, steps)

    def _run(self, key_queue: KeyQueue, steps: list[Step]) -> None:
        """Gets meet items, and waiting puts take their places, until nothing moves any more."""
        moves = True
        while moves:
            while (too_heavy := key_queue.match(self.budget, steps)) is not None:
                del self.clients[too_heavy.consumer].gets[too_heavy.number]
                steps.append((Act.TOO_HEAVY, too_heavy))
            moves = bool(key_queue.puts) and self._admit(key_queue, steps)
        if not key_queue.items:
            self._settle(key_queue, steps)

    def _admit(self, key_queue: KeyQueue, steps: list[Step]) -> bool:
        """Lets the first waiting put of a key in, if it may, or refuses it; whether it did."""
        item = next(iter(key_queue.puts))
        budget = self.budget
        if self.maxsize and key_queue.size >= self.maxsize:
            return False
        if item.pulled:
            if item.body is None:
                return False
        elif not budget.allows(item.key, item.nbytes):
            if item.nowait and not self.ledger.outstanding:  # not even with all credit back
                self._waits_no_more(key_queue, item)
                steps.append((Act.FULL, item))
                return True
            if item.nowait:
                self._undecided[item] = key_queue
            budget.blocked.setdefault(item.key)
            self._free_bytes(steps)
            return False
        elif item.body is None:
            budget.reserve(item.key, item.nbytes)
            item.pulled = True
            steps.append((Act.PULL, item))
            return False
        self._waits_no_more(key_queue, item)
        self._accept(key_queue, item, steps)
        return True

    def _waits_no_more(self, key_queue: KeyQueue, item: Item) -> None:
        del key_queue.puts[item]
        client = self.clients.get(item.producer)
        if client is not None:
            client.puts.pop(item.number, None)
        if item.body is not None and not item.pulled:
            self.budget.buffered -= item.nbytes

    # -- bytes and credit ---------------------------------------------------------------------------------------

    def _lend(self, key_queue: KeyQueue, producer: int, steps: list[Step]) -> None:
        budget = self.budget
        if key_queue.puts or budget.blocked or self.closing or producer not in self.clients:
            return
        amount = self.ledger.lend(producer, budget.used + budget.buffered)
        if amount:
            steps.append((Act.GRANT, Grant(producer, amount)))

    def _credit_is_back(self, steps: list[Step]) -> None:
        """Some of it."""
        if self._undecided and not self.ledger.outstanding:
            undecided, self._undecided = self._undecided, {}
            for item, key_queue in undecided.items():
                if item in key_queue.puts:
                    self._run(key_queue, steps)
                    self._settle(key_queue, steps)
        if self.budget.blocked:
            self._unblock(steps)
        if self.closing and not self.closed and not self.ledger.outstanding:
            self.closed = True
            for key_queue in list(self._keys.values()):
                self._settle(key_queue, steps)

    def _unblock(self, steps: list[Step]) -> None:
        """Bytes are free: keys that are blocked get them, in their order."""
        budget = self.budget
        while budget.blocked:
            key = next(iter(budget.blocked))
            key_queue = self._keys[key]
            item = next(iter(key_queue.puts), None)
            waits = item is not None and not item.pulled and not (self.maxsize and key_queue.size >= self.maxsize)
            if item is not None and waits and not budget.fits(item.nbytes):
                self._free_bytes(steps)
                return
            budget.unblock(key)
            if waits:
                self._run(key_queue, steps)

    def _avoid_deadlock(self, steps: list[Step]) -> None:
        """Looks anew at puts that wait for bytes when a batch may have gathered the last of them."""
        if self.budget.blocked and self.budget.deadlocked:
            self._unblock(steps)

    def _free_bytes(self, steps: list[Step]) -> None:
        """Credit is recalled; where every byte is held by batches that want more, one of them has to give up."""
        if self.ledger.outstanding:
            steps += [(Act.RECALL, recall) for recall in self.ledger.recall()]
        elif self.budget.deadlocked:
            get = next(iter(self.budget.partial))
            del self.clients[get.consumer].gets[get.number]
            steps.append((Act.OUT_OF_BYTES, get))
            self._withdraw([], [get], steps)

    # -- gets ---------------------------------------------------------------------------------------------------

    def enter(self, get: Get, steps: list[Step]) -> None:
        """A get meets items, or waits for some."""
        key_queue = self._keys.get(get.key) or self._new_key(get.key)
        if (get.target is None or get.partly) and not key_queue.gets and key_queue.size:
            key_queue.serve(get, steps)
            if key_queue.puts:
                self._run(key_queue, steps)
            return
        key_queue.gets[get] = None
        self._run(key_queue, steps)
        if get.nowait and get in key_queue.gets:
            del self.clients[get.consumer].gets[get.number]
            steps.append((Act.EMPTY, get))
            self._withdraw([], [get], steps)
        self._avoid_deadlock(steps)

    def suspend(self, get: Get) -> None:
        """A get that waits has to enter again, if it is not cancelled before."""
        self._keys[get.key].remove_get(get, self.budget)

    def _withdraw(self, puts: Iterable[Item], gets: Iterable[Get], steps: list[Step]) -> None:
        """Takes out requests that wait and returns leased items; only when all are back, others may have them."""
        touched: dict[KeyQueue, None] = {}
        for item in puts:
            key_queue = self._keys[item.key]
            del key_queue.puts[item]
            touched[key_queue] = None
            if item.pulled:
                self.budget.used -= item.nbytes
            elif item.body is not None:
                self.budget.buffered -= item.nbytes
        for get in gets:
            if get.gated and not self._has_left(get):
                continue
            key_queue = self._keys[get.key]
            touched[key_queue] = None
            key_queue.give_back(get, self.budget)
        for key_queue in touched:
            self._run(key_queue, steps)
            self._settle(key_queue, steps)
        if self.budget.blocked:
            self._unblock(steps)

    def _has_left(self, get: Get) -> bool:
        assert self.gate is not None
        return self.gate.left(get)

    # -- the end ------------------------------------------------------------------------------------------------

    def settle(self, key: bytes, steps: list[Step]) -> None:
        """Requests that the gate has released enter."""
        if key in self._keys:
            self._settle(self._keys[key], steps)

    def _settle(self, key_queue: KeyQueue, steps: list[Step]) -> None:
        """Ends the gets of a closed queue that nothing can reach any more, and forgets a key that is not used."""
        if self.released:
            self._enter_released(key_queue.key, steps)
        if self.closed and key_queue.gets and not key_queue.size and not key_queue.puts:
            self._end_gets(key_queue, steps)
        if key_queue.is_idle() and self._keys.get(key_queue.key) is key_queue:
            del self._keys[key_queue.key]
            self._counts.put += key_queue.put
            self._counts.got += key_queue.got
            if key_queue.key in self.budget.blocked:
                self.budget.unblock(key_queue.key)

    def _enter_released(self, key: bytes, steps: list[Step]) -> None:
        assert self.gate is not None
        for request in self.released.pop(key, ()):
            if self.gate.admits(request, steps):
                self.enter(request, steps)

    def _end_gets(self, key_queue: KeyQueue, steps: list[Step]) -> None:
        for get in list(key_queue.gets):
            if self._may_yet_come(key_queue, get):
                if get.items:
                    break  # what it has gathered may yet come to those behind it
                continue
            key_queue.remove_get(get, self.budget)
            if get.items:
                key_queue.lease(get, steps)
            else:
                del self.clients[get.consumer].gets[get.number]
                if get.gated:
                    self._has_left(get)
                steps.append((Act.ENDED, get))
        if self.released:
            self._enter_released(key_queue.key, steps)

    def _may_yet_come(self, key_queue: KeyQueue, get: Get) -> bool:
        """Whether another client holds a lease of something that may come back."""
        own = self.clients[get.consumer].gets.values()
        leased = key_queue.leases - sum(other.delivered and other.key == key_queue.key for other in own)
        return leased > 0

    def _discard(self, steps: list[Step]) -> None:
        """Forgets all keys: items are gone, requests that wait end, and leased items do not come back."""
        self.closed = True
        if self.gate is not None:
            self.gate.discard(steps)
        for client in self.clients.values():
            steps += [(Act.ENDED, get) for get in client.gets.values() if not get.delivered]
            client.gets.clear()
        for key_queue in self._keys.values():  # what is leased is its consumer's
            self._counts.put += key_queue.put
            self._counts.got += key_queue.got + key_queue.leased
            self._counts.drop(DISCARDED, key_queue.present - key_queue.leased)
        self._keys.clear()
        self._undecided.clear()
        self.budget.clear()
