"""State machine of a channel's queue: a FIFO per key, with weighted batches, bounds, and leases of items.

The queue is plain state. Each of its clients is a process, which numbers its requests 1, 2, 3, … Each method takes one
client's message and returns the resulting actions, in order, for the queue's owner::

    put ── room ──► ACCEPTED       get ── item ──► DELIVER: leased ── taken ──► gone
        └─ full ──► waits              └─ none ──► waits        └─ given back, or its consumer died ──► its old place

A queue is a table of keys (``key_queue.py``). The keys share a byte budget (``byte_budget.py``) and nothing else, so a
key without a consumer blocks no other key. Items that one client puts under one key are delivered in the order of
their numbers. The cost of a method does not grow with the number of queued items or waiting requests.

For its producer, a put with ``sent`` is done immediately, and its item is admitted even if the producer dies. Such puts
are not answered; instead, the queue occasionally reports the number of admitted bytes to the producer (FREED).

A get without a lease delivers at most once: an item that its consumer may have received is never delivered again. A get
with a lease (``lease_s``) keeps its items in the queue until the consumer confirms them.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence
from typing import Any

from rlinf_async._channels.state.actions import ACCEPTED, QueueAction, Step
from rlinf_async._channels.state.byte_budget import ByteBudget
from rlinf_async._channels.state.key_queue import KeyQueue
from rlinf_async._channels.state.put_window import ITEM_OVERHEAD_BYTES, cost, report_from_bytes
from rlinf_async._channels.state.queue_client import Demand, Item, QueueClient
from rlinf_async._channels.state.queue_counts import DISCARDED, NODE_LOST, TOO_LATE, QueueCounts


# This class is not split, although it has more than 30 methods, because each kind of client message has a method, which
# may unblock other clients' requests.
class Queue:
    """The items of one channel on one node.

    Args:
        maxsize: limit on the items of one key; 0 means no bound. Items returned by a consumer may exceed it.
        max_bytes: limit on the bytes of all items, including leased items; 0 means no bound.
        gone: dead clients, whose late messages are ignored.

    Attributes:
        closed: True once puts are refused.
        consumers: live clients that have requested items.

    Example:
        queue = Queue(maxsize=2)
        queue.get(consumer, 1, b"key")                  # []: it waits
        queue.put(producer, 1, b"key", body=b"…")       # [(ACCEPTED, item), (DELIVER, get)]
        queue.taken(consumer, [(1, 1)])                 # []: the item is gone
    """

    def __init__(self, maxsize: int = 0, max_bytes: int = 0, gone: Container[int] = ()) -> None:
        self.maxsize = maxsize
        self.closed = False
        self.budget = ByteBudget(max_bytes)
        self.clients: dict[int, QueueClient] = {}
        self.consumers: set[int] = set()
        self._gone = gone
        self._keys: dict[bytes, KeyQueue] = {}
        self._places = itertools.count()
        self._counts = QueueCounts()
        self._is_freeing = False

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Queue {state} [{len(self._keys)} keys, {len(self.clients)} clients, {self.budget.used} bytes]>"

    @property
    def finished(self) -> bool:
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
        sent: bool = False,
    ) -> list[Step]:
        return self._in_order(producer, number, Item(producer, number, key, weight, nbytes, body, nowait, sent))

    def get(self, consumer: int, number: int, key: bytes, *demand: Any, **attributes: Any) -> list[Step]:
        """Request one item, or a batch described by further attributes of ``Demand``."""
        return self._in_order(consumer, number, Demand(consumer, number, key, *demand, **attributes))

    def skip(self, client_id: int, number: int) -> list[Step]:
        """Advance past the number of a request that was invalid or never sent."""
        return self.cancel(client_id, number) + self._in_order(
            client_id, number, Item(client_id, number, b"", 0, 0, None, True)
        )

    def taken(self, consumer: int, taken: Iterable[Sequence[int]]) -> list[Step]:
        """Record how many items of each get the consumer has taken; a repeated message has no effect."""
        steps: list[Step] = []
        client = self.clients.get(consumer)
        if client is None:
            return steps
        for number, count in taken:
            get = client.gets.get(number)
            if get is not None and get.delivered and get.lease_s is None and count > get.taken:
                self._take(client, get, min(count - get.taken, len(get.items)), steps)
        if self.budget.blocked:
            self._unblock(steps)
        return steps

    def confirm(self, consumer: int, number: int, count: int, steps: list[Step]) -> bool:
        """Permanently remove the first ``count`` items of a lease from the channel.

        Return False without removing any if the lease has ended or has fewer items.
        """
        client = self.clients.get(consumer)
        get = None if client is None else client.gets.get(number)
        if client is None or get is None or not get.delivered or get.lease_s is None or count > len(get.items):
            return False
        self._take(client, get, count, steps)
        if self.budget.blocked:
            self._unblock(steps)
        return True

    def _take(self, client: QueueClient, get: Demand, count: int, steps: list[Step]) -> None:
        for item in get.items[:count]:
            self.budget.used -= item.nbytes
        del get.items[:count]
        get.taken += count
        key_queue = self._keys[get.key]
        key_queue.handed_out_items -= count
        key_queue.got += count
        if not get.items:
            del client.gets[get.number]
            key_queue.handed_out -= 1
            self._settle(key_queue, steps)

    def _lose(self, get: Demand) -> None:
        lost, key_queue = len(get.items), self._keys[get.key]
        self._counts.put += lost
        self._counts.drop(NODE_LOST, lost)
        key_queue.put -= lost
        key_queue.handed_out_items -= lost
        self.budget.used -= sum(item.nbytes for item in get.items)
        get.items.clear()

    def cancel(self, client_id: int, *numbers: int) -> list[Step]:
        """Cancel requests: drop waiting requests, return leased items to their places."""
        client = self.client(client_id)
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

    def drop(self, client_id: int, *, is_lost: bool = False) -> list[Step]:
        """Forget a dead client. Its queued items stay, and its ``sent`` items are still admitted.

        Args:
            is_lost: True if its node is lost, perhaps together with a report that the client had taken items. In this
                case, delivered items are dropped unless they are leased.
        """
        steps: list[Step] = []
        self.consumers.discard(client_id)
        client = self.clients.pop(client_id, None)
        if client is None:
            return steps
        # Before the withdrawal, drop the items that the client may have taken; otherwise the withdrawal would return
        # them to the queue, and another client would get them again.
        for get in client.gets.values() if is_lost else ():
            if get.delivered and get.lease_s is None:
                self._lose(get)
        self._withdraw([item for item in client.puts.values() if not item.sent], client.gets.values(), steps)
        self._put_early(client, steps)
        return steps

    def _put_early(self, client: QueueClient, steps: list[Step]) -> None:
        # A gap in the numbers is a message that a dead process never sent, or that another thread of the process is yet
        # to send. The sent items that follow the gap are admitted now, because their puts are done.
        for number, early in sorted(client.early.items()):
            if type(early) is Item and early.sent and number not in client.cancelled:
                client.cancelled.add(number)
                self._put(client, early, steps)

    def close(self, *, discard: bool = False) -> list[Step]:
        """Refuse puts, including waiting puts; gets end once all items have been taken.

        Args:
            discard: True to also discard all items, even if the queue is already closed.
        """
        steps: list[Step] = []
        if not self.closed:
            for each in self.clients.values():
                self._put_early(each, steps)
            self.closed = True
            for key_queue in self._keys.values():
                waiting, key_queue.puts = key_queue.puts, OrderedDict()
                for item in waiting:
                    if (client := self.clients.get(item.producer)) is not None:
                        client.puts.pop(item.number, None)
                    if item.sent:  # no put message will follow, so accept it even if the queue is full
                        self._accept(key_queue, item, steps)
                    else:
                        steps.append((QueueAction.CLOSED, item))
            for key_queue in [] if discard else list(self._keys.values()):
                self._run(key_queue, steps)
                self._settle(key_queue, steps)
            if self.budget.blocked:
                self._unblock(steps)
        if discard:
            self._discard(steps)
        return steps

    # -- queries ------------------------------------------------------------------------------------------------

    def size(self, key: bytes) -> int:
        key_queue = self._keys.get(key)
        return 0 if key_queue is None else key_queue.size

    def full(self, key: bytes) -> bool:
        """True if a put of any size would have to wait."""
        if self.budget.max_bytes and self.budget.used >= self.budget.max_bytes:
            return True
        return bool(self.maxsize) and self.size(key) >= self.maxsize

    def waiting(self, key: bytes) -> tuple[int, int]:
        key_queue = self._keys.get(key)
        return (0, 0) if key_queue is None else (len(key_queue.puts), len(key_queue.gets))

    def peek(self, key: bytes) -> list[Item]:
        key_queue = self._keys.get(key)
        return [] if key_queue is None else key_queue.peek()

    def counts(self) -> QueueCounts:
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
        """Return the keys with queued items, leased items or waiting requests."""
        return list(self._keys)

    # -- clients and their order --------------------------------------------------------------------------------

    def client(self, client_id: int) -> QueueClient | None:
        client = self.clients.get(client_id)
        if client is None and client_id not in self._gone:
            client = self.clients[client_id] = QueueClient()
        return client

    def _in_order(self, client_id: int, number: int, request: Item | Demand) -> list[Step]:
        """Process each of a client's requests once, in numerical order."""
        steps: list[Step] = []
        client = self.clients.get(client_id) or self.client(client_id)
        if client is None:
            return steps
        if number != client.expected:
            if number > client.expected:
                client.early.setdefault(number, request)
            return steps
        following: Item | Demand | None = request
        while following is not None:
            number = client.expected
            client.expected = number + 1
            # The cancel was processed before its request. Drop the request, because items given to a cancelled get are
            # lost.
            if client.cancelled and number in client.cancelled:
                client.cancelled.discard(number)
            elif type(following) is Demand:
                client.gets[number] = following
                self._enter(following, steps)
            elif type(following) is Item:
                self._put(client, following, steps)
            following = client.early.pop(number + 1, None) if client.early else None
        return steps

    def _of_key(self, key: bytes) -> KeyQueue:
        key_queue = self._keys.get(key)
        if key_queue is None:
            key_queue = self._keys[key] = KeyQueue(key, self.consumers)
        return key_queue

    # -- puts ---------------------------------------------------------------------------------------------------

    def _put(self, client: QueueClient, item: Item, steps: list[Step]) -> None:
        budget = self.budget
        if self.closed:
            if item.sent:
                self._counts.put += 1
                self._counts.drop(TOO_LATE)
                self._free_window(item, steps, at_once=True)
            steps.append((QueueAction.CLOSED, item))
            return
        if budget.max_bytes and item.nbytes > budget.max_bytes:
            steps.append((QueueAction.TOO_LARGE, item))
            return
        key_queue = self._of_key(item.key)
        # Even a put that fits must not overtake waiting puts, which may be earlier puts of the same producer and key.
        if not key_queue.puts and self._has_room(key_queue, item):
            self._accept(key_queue, item, steps)
            if key_queue.gets:
                self._run(key_queue, steps)
        elif item.nowait:
            steps.append((QueueAction.FULL, item))
            self._settle(key_queue, steps)
        else:
            key_queue.puts[item] = None
            client.puts[item.number] = item
            self._run(key_queue, steps)

    def _has_room(self, key_queue: KeyQueue, item: Item) -> bool:
        return (not self.maxsize or key_queue.size < self.maxsize) and self.budget.allows(item.key, item.nbytes)

    def _accept(self, key_queue: KeyQueue, item: Item, steps: list[Step]) -> None:
        self.budget.reserve(item.key, item.nbytes)
        item.place = next(self._places)
        key_queue.items.append(item)
        key_queue.put += 1
        if item.sent:
            self._free_window(item, steps)
        else:
            steps.append((ACCEPTED, item))

    def _free_window(self, item: Item, steps: list[Step], *, at_once: bool = False) -> None:
        """Credit an admitted ``sent`` item to its producer, and occasionally report the credit."""
        client = self.clients.get(item.producer)
        if client is not None:
            client.unsaid_bytes += cost(item.nbytes - ITEM_OVERHEAD_BYTES)
            if at_once or client.unsaid_bytes >= report_from_bytes():
                steps.append((QueueAction.FREED, (item.producer, client.unsaid_bytes)))
                client.unsaid_bytes = 0

    def _run(self, key_queue: KeyQueue, steps: list[Step]) -> None:
        """Match gets with items, and admit waiting puts, until nothing changes."""
        moves = True
        while moves:
            while (too_heavy := key_queue.match(self.budget, steps)) is not None:
                del self.clients[too_heavy.consumer].gets[too_heavy.number]
                steps.append((QueueAction.TOO_HEAVY, too_heavy))
            moves = bool(key_queue.puts) and self._admit(key_queue, steps)
        if not key_queue.items:
            self._settle(key_queue, steps)

    def _admit(self, key_queue: KeyQueue, steps: list[Step]) -> bool:
        """Admit a key's first waiting put if it fits. Return True if it did."""
        item = next(iter(key_queue.puts))
        if self.maxsize and key_queue.size >= self.maxsize:
            return False
        if not self.budget.allows(item.key, item.nbytes):
            self.budget.blocked.setdefault(item.key)
            self._free_bytes(steps)
            return False
        del key_queue.puts[item]
        if (client := self.clients.get(item.producer)) is not None:
            client.puts.pop(item.number, None)
        self._accept(key_queue, item, steps)
        return True

    # -- bytes --------------------------------------------------------------------------------------------------

    def _unblock(self, steps: list[Step]) -> None:
        budget = self.budget
        while budget.blocked:
            key = next(iter(budget.blocked))
            key_queue = self._keys[key]
            item = next(iter(key_queue.puts), None)
            waits = item is not None and not (self.maxsize and key_queue.size >= self.maxsize)
            if item is not None and waits and not budget.fits(item.nbytes):
                self._free_bytes(steps)
                return
            budget.unblock(key)
            if waits:
                self._run(key_queue, steps)

    def _free_bytes(self, steps: list[Step]) -> None:
        """While incomplete batches use up the whole byte budget, fail one after the other."""
        # The returned items may go to the next waiting batch, so ``_withdraw`` calls this method again. One loop serves
        # all of these calls; otherwise a few hundred batches would exceed Python's recursion limit.
        # tests/_channels/state/test_queue.py::test_hundreds_of_batches_that_fill_all_bytes_in_turn_all_fail
        if self._is_freeing:
            return
        self._is_freeing = True
        while self.budget.blocked and self.budget.deadlocked:
            get = next(iter(self.budget.partial))
            del self.clients[get.consumer].gets[get.number]
            steps.append((QueueAction.OUT_OF_BYTES, get))
            self._withdraw([], [get], steps)
        self._is_freeing = False

    # -- gets ---------------------------------------------------------------------------------------------------

    def _enter(self, get: Demand, steps: list[Step]) -> None:
        if get.consumer not in self.consumers:
            if len(self.consumers) == 1:
                (only,) = self.consumers
                steps += [(QueueAction.SHARED, only)] * any(other.shared for other in self.clients[only].gets.values())
            self.consumers.add(get.consumer)
        key_queue = self._of_key(get.key)
        if (get.target is None or get.partly) and not key_queue.gets and key_queue.size:
            key_queue.serve(get, steps)
            if key_queue.puts:
                self._run(key_queue, steps)
            return
        key_queue.gets[get] = None
        self._run(key_queue, steps)
        if get.nowait and get in key_queue.gets:
            del self.clients[get.consumer].gets[get.number]
            steps.append((QueueAction.EMPTY, get))
            self._withdraw([], [get], steps)
        # This batch may just have used up the remaining bytes.
        if self.budget.blocked and self.budget.deadlocked:
            self._unblock(steps)

    def _withdraw(self, puts: Iterable[Item], gets: Iterable[Demand], steps: list[Step]) -> None:
        touched: dict[KeyQueue, None] = {}
        for item in puts:
            key_queue = self._keys[item.key]
            del key_queue.puts[item]
            touched[key_queue] = None
        for get in gets:
            key_queue = self._keys[get.key]
            touched[key_queue] = None
            key_queue.give_back(get, self.budget)
        # Match only after all these gets have been removed; otherwise an item returned by one of them would go to
        # another get that is about to be withdrawn.
        for key_queue in touched:
            self._run(key_queue, steps)
            self._settle(key_queue, steps)
        if self.budget.blocked:
            self._unblock(steps)

    # -- close ------------------------------------------------------------------------------------------------

    def _settle(self, key_queue: KeyQueue, steps: list[Step]) -> None:
        """End a closed queue's gets that no item can reach, and forget an unused key."""
        if self.closed and key_queue.gets and not key_queue.size and not key_queue.puts:
            self._end_gets(key_queue, steps)
        if key_queue.is_idle() and self._keys.get(key_queue.key) is key_queue:
            del self._keys[key_queue.key]
            self._counts.put += key_queue.put
            self._counts.got += key_queue.got
            if key_queue.key in self.budget.blocked:
                self.budget.unblock(key_queue.key)

    def _end_gets(self, key_queue: KeyQueue, steps: list[Step]) -> None:
        for get in list(key_queue.gets):
            if self._may_yet_come(key_queue, get):
                if get.items:
                    break  # the gathered items may still go to later gets
                continue
            key_queue.remove_get(get, self.budget)
            if get.items:
                key_queue.hand_out(get, steps)
            else:
                del self.clients[get.consumer].gets[get.number]
                steps.append((QueueAction.ENDED, get))

    def _may_yet_come(self, key_queue: KeyQueue, get: Demand) -> bool:
        """True if a returned item may still serve this get.

        Other clients may return the items delivered to them. The get's own client may return leases and a loop's unread
        items; items of its plain gets are returned only if it dies, in which case this get ends as well.
        """
        own = self.clients[get.consumer].gets.values()
        return key_queue.handed_out > sum(
            other.delivered and other.key == key_queue.key and other.lease_s is None and not other.stepwise
            for other in own
        )

    def _discard(self, steps: list[Step]) -> None:
        """Forget all keys: drop items, end waiting requests, refuse returned leases."""
        for client in self.clients.values():
            steps += [(QueueAction.ENDED, get) for get in client.gets.values() if not get.delivered]
            client.gets.clear()
        for key_queue in self._keys.values():  # leased items stay with their consumers
            self._counts.put += key_queue.put
            self._counts.got += key_queue.got + key_queue.handed_out_items
            self._counts.drop(DISCARDED, key_queue.present - key_queue.handed_out_items)
        self._keys.clear()
        self.budget.clear()
