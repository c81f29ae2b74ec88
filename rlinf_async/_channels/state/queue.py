"""A channel's queue: keyed, weighted, bounded, leased.

Plain state.  A *party* is a process that uses the queue; it numbers what it asks for 1, 2, 3, …  Each method takes what
one party says and returns the steps that follow from it, in order, for whoever owns the queue to carry out::

    put ── room ──► ACCEPTED       get ── item ──► DELIVER: leased ── taken ──► gone
        └─ full ──► waits              └─ none ──► waits        └─ given back, or its consumer died ──► its old place

What one party puts under one key is delivered in the order of its numbers.  Keys share ``max_bytes`` and nothing else:
a key that nobody empties holds up no other.  No method takes longer because more is queued or waiting.

A producer may be granted credit (``_channels/state/credit.py``): what it pays for with that is in once it was said, and
no step tells of it.  Where the room that is set aside is wanted for others, and before the queue is closed, it is
recalled.

A consumer may send gets ahead (``_channels/state/ahead.py``); they are called back before anybody else can notice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlinf_async._channels.state.actions import Act, Step
from rlinf_async._channels.state.ahead import Ahead
from rlinf_async._channels.state.credit import Recall
from rlinf_async._channels.state.key_queue import Get, Item


class Queue(Ahead):
    """The items of one channel on one node.

    Args:
        maxsize: items that one key may hold; 0 is without bound.  Items that come back from a consumer may exceed it.
        max_bytes: bytes that all items may have together, those included that are leased; 0 is without bound.
        gone: parties that are dead: what they have said and comes late is dropped.
        slack: bytes of waiting puts whose bodies are kept here; by default a sixteenth of ``max_bytes``, or ``SLACK``.
        lends_to: whether a party may have credit; by default nobody may, nor where there is a ``maxsize``.

    Example:
        queue = Queue(maxsize=2)
        queue.get(consumer, 1, b"key")                  # []: it waits
        queue.put(producer, 1, b"key", body=b"…")       # [(ACCEPTED, item), (DELIVER, get)]
        queue.taken(consumer, [1])                      # []: the item is gone
    """

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
            paid: bytes of credit, no fewer than ``nbytes``, with which it is paid for; where the producer does not
                have so much, the item is lost.
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
        self,
        consumer: int,
        number: int,
        key: bytes,
        target: int | None = None,
        nowait: bool = False,
        ahead: bool = False,
    ) -> list[Step]:
        """One item is wanted; with a ``target``, as many as weigh that much together.

        Args:
            ahead: nobody has asked the consumer for it yet; only one without a target may be.
        """
        return self._hear(consumer, number, Get(consumer, number, key, target, nowait, ahead))

    def skip(self, who: int, number: int, paid: int = 0) -> list[Step]:
        """What a party has asked makes no sense: it counts as given up.  ``paid`` is the credit that it has cost."""
        steps = self.cancel(who, number)
        return steps + self._hear(who, number, Item(who, number, b"", 0, 0, None, True, paid))

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
            if get.ahead:
                lane.no_longer_ahead(get)
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
        party.asleep.pop(number, None)
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

    def close(self, *, discard: bool = False) -> list[Step]:
        """No more puts, not even of those that wait for room; gets end once what is in has been taken.

        The queue is ``closed`` when all credit is back; until then what was put with it still comes in.

        Args:
            discard: throw away what is in, of a queue that was closed before, too: then it is ``closed`` at once.
        """
        steps: list[Step] = []
        if not self.closing:
            self.closing = True
            self._turn_away(steps)
            if not discard:
                steps += [(Act.RECALL, recall) for recall in self.ledger.recall_all()]
        if discard:
            self._discard(steps)
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

    def waiting(self, key: bytes) -> tuple[int, int]:
        """How many puts and gets wait under a key."""
        lane = self._lanes.get(key)
        return (0, 0) if lane is None else (len(lane.puts), len(lane.gets))

    def peek(self, key: bytes) -> list[Item]:
        """What is queued, in order; it stays where it is."""
        lane = self._lanes.get(key)
        return [] if lane is None else lane.peek()

    @property
    def used(self) -> list[bytes]:
        """The keys of which anything is queued, leased or waiting."""
        return list(self._lanes)

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
