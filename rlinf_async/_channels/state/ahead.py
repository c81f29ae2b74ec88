"""Gets that a process sends ahead of its callers: what the queue makes of them.

A consumer that asks one by one sends gets before anybody asks it, so that items are there when somebody does.  They
stand in line and are leased like any others; but nobody may notice them.  So as soon as somebody else asks under their
key, they are called back, and what was asked is heard when their owner has said which of them callers have::

    owner ── gets ahead ──► queue ◄── a get or a question ── another
    owner ◄── CALL_BACK ─── queue                                       it is held
    owner ── given back ──► queue ── their items, at their old places ─►        or forfeited, after a while

Those that it does not give back are its callers' and become gets like any others.  The other side of it is
``_channels/state/prefetch_window.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

from rlinf_async._channels.state.actions import Act, Step
from rlinf_async._channels.state.key_queue import Get, KeyQueue, Question
from rlinf_async._channels.state.outlet import Outlet
from rlinf_async._channels.state.queue_client import QueueClient


@dataclass(frozen=True)
class Call:
    """A party shall give back what it has sent ahead under a key; ``turn`` tells one call from the next."""

    party: int
    key: bytes
    turn: int


class Ahead(Outlet):
    """What becomes of gets that were sent ahead, and of what they hold up.  One party at a time has some of a key."""

    def __init__(
        self,
        maxsize: int = 0,
        max_bytes: int = 0,
        gone: Container[int] = (),
        slack: int | None = None,
        lends_to: Callable[[int], bool] | None = None,
    ) -> None:
        super().__init__(maxsize, max_bytes, gone, slack, lends_to)
        self._turns = itertools.count(1)

    def ask(self, who: int, key: bytes, what: Any) -> list[Step]:
        """Somebody wants to know what is queued under a key: it is answered when that is the truth."""
        steps: list[Step] = []
        self._party(who)  # which hears of the end of the queue, if that comes before the answer
        self._ask(Question(who, key, what), steps)
        return steps

    def gave_back(self, who: int, key: bytes, numbers: Iterable[int]) -> list[Step]:
        """Nobody has asked for these gets, which were sent ahead, and nobody will; the others of the key have callers.

        What one of them waited for while it was forfeited, it waits for anew; what was asked after it waits behind it.
        """
        party = self._party(who)
        if party is None:
            return []
        back: list[Get | None] = []
        for number in numbers:
            if number >= party.expected:
                party.cancelled.add(number)
            elif party.asleep.pop(number, None) is None:
                back.append(party.gets.pop(number, None))
        lane = self._lanes.get(key)
        if lane is not None and lane.owner == who:
            for get in list(lane.ahead):
                lane.no_longer_ahead(get)
        steps = self._withdraw([], back)
        if lane is not None:
            self._settle(lane, steps)
        woken = [get for get in party.asleep.values() if get.key == key]
        for get in woken:
            del party.asleep[get.number]
        for get in woken:
            self._get(party, get, steps)
        return steps

    def forfeit_ahead(self, call: Call) -> list[Step]:
        """A party has not answered for too long: what has been delivered ahead is free for others, flagged."""
        lane = self._lanes.get(call.key)
        if lane is None or lane.owner is None or lane.turn != call.turn:
            return []
        party = self.parties[lane.owner]
        back: list[Get | None] = []
        for get in list(lane.ahead):
            lane.no_longer_ahead(get)
            del party.gets[get.number]
            if get.delivered:
                back.append(get)
            else:
                self._strike(lane, get)
                party.asleep[get.number] = get
        steps = self._withdraw([], back)
        self._settle(lane, steps)
        return steps

    # -- what is held -------------------------------------------------------------------------------------------

    def _get(self, party: QueueClient, get: Get, steps: list[Step]) -> None:
        if party.asleep and any(before.key == get.key for before in party.asleep.values()):
            party.asleep[get.number] = get  # it will hear of those before it, for it has been called back
            return
        lane = self._lanes.get(get.key)
        if lane is not None and lane.owner is not None and lane.owner != get.consumer:
            party.gets[get.number] = get
            self._hold(lane, get, steps)
            return
        if get.ahead:
            if lane is None:
                lane = self._lanes[get.key] = KeyQueue(get.key)
            lane.add_ahead(get)
        super()._get(party, get, steps)

    def _ask(self, question: Question, steps: list[Step]) -> None:
        lane = self._lanes.get(question.key)
        if lane is not None and lane.owner is not None and lane.owner != question.consumer:
            self._hold(lane, question, steps)
        else:
            steps.append((Act.ANSWER, question))

    def _hold(self, lane: KeyQueue, wish: Get | Question, steps: list[Step]) -> None:
        assert lane.owner is not None
        lane.held[wish] = None
        if not lane.turn:
            lane.turn = next(self._turns)
            steps.append((Act.CALL_BACK, Call(lane.owner, lane.key, lane.turn)))

    def _hear_held(self, lane: KeyQueue, steps: list[Step]) -> None:
        held, lane.held = lane.held, {}
        for wish in held:
            if isinstance(wish, Question):
                self._ask(wish, steps)
            else:
                self._get(self.parties[wish.consumer], wish, steps)

    # -- the end ------------------------------------------------------------------------------------------------

    def _turn_away(self, steps: list[Step]) -> None:
        """The puts that wait for room come to nothing, but for those that are in already, as their producers know."""
        waiting = [item for lane in self._lanes.values() for item in lane.puts if not item.paid]
        for item in waiting:
            del self.parties[item.producer].puts[item.number]
            steps.append((Act.CLOSED, item))
        steps += self._withdraw(waiting, [])

    def _discard(self, steps: list[Step]) -> None:
        """Forgets all keys: what is queued is gone, what waits ends, and what was handed out does not come back."""
        self.closed = True
        for lane in self._lanes.values():
            steps += [(Act.ANSWER, wish) for wish in lane.held if isinstance(wish, Question)]
        for party in self.parties.values():
            waiting = [*party.gets.values(), *party.asleep.values()]
            steps += [(Act.ENDED, get) for get in waiting if not get.delivered]
            party.gets.clear()
            party.asleep.clear()
        self._lanes.clear()
        self._cramped.clear()
        self._undecided.clear()
        self._gathering.clear()
        self.bytes = self.waiting_bytes = self._overtaken = self._gathered = 0
