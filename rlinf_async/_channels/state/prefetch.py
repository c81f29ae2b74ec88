"""Queue-side gate for prefetched gets: calls them back when another client asks, and holds that one's request.

Prefetched gets, which a consumer sends before its callers ask, stand in line and are leased like any others: no other
client notices them.  As soon as one asks under their key, they are called back, and its request is held until their
consumer has told which of them its callers have::

    consumer ── prefetched gets ──► queue ◄── a get or a question ── another
    consumer ◄── CALL_BACK ──────── queue                                it is held
    consumer ── given back ───────► queue ── their items, at their old places ─►   or forfeited, after a while

Those that it does not give back are its callers' and become gets like any others.  The consumer's side is
``prefetch_window.py``.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rlinf_async._channels.state.actions import Act, Step
from rlinf_async._channels.state.queue import Queue
from rlinf_async._channels.state.queue_client import Get


@dataclass(frozen=True)
class CallBack:
    """A client shall give back the gets that it has prefetched under a key; ``turn`` tells one call from the next."""

    client: int
    key: bytes
    turn: int


@dataclass(slots=True, eq=False)
class Question:
    """A request to know what is queued under a key; ``what`` is for the owner of the queue, who answers."""

    consumer: int
    key: bytes
    what: Any


@dataclass(slots=True, eq=False)
class _Hold:
    """Prefetched gets of one client under one key, and the requests of others that they hold up.

    Attributes:
        gets: those that wait or are leased.
        held: in order.
        turn: of the call by which they were called back; 0 if they were not.
    """

    client: int
    gets: dict[Get, None] = field(default_factory=dict)
    held: dict[Get | Question, None] = field(default_factory=dict)
    turn: int = 0


class Prefetch:
    """The gate of one queue, and the messages about prefetched gets.  One client at a time has some of a key."""

    def __init__(self, queue: Queue) -> None:
        queue.gate = self
        # Not a cycle: items hold descriptors, which are closed when the queue's last reference goes.
        self._queue: Queue = weakref.proxy(queue)
        self._released = queue.released
        self._turns = itertools.count(1)
        self._holds: dict[bytes, _Hold] = {}
        self._forfeited: dict[tuple[int, bytes], dict[Get, None]] = {}
        """Gets that waited when they were forfeited: some caller may yet count on them.  And those that the same client
        has sent under the key since then."""

    def __repr__(self) -> str:
        return f"<Prefetch [{len(self._holds)} keys]>"

    # -- messages -----------------------------------------------------------------------------------------------

    def ask(self, who: int, key: bytes, what: Any) -> list[Step]:
        """A question about a key: it is answered when no prefetched get hides anything."""
        steps: list[Step] = []
        self._queue.client(who)  # which is told of the end of the queue, if that comes before the answer
        self.admits(Question(who, key, what), steps)
        return steps

    def gave_back(self, who: int, key: bytes, numbers: Iterable[int]) -> list[Step]:
        """No caller has asked for these prefetched gets, and none will; the others of the key have callers.

        A get that waited when it was forfeited waits anew; what was asked after it waits behind it.
        """
        if self._queue.client(who) is None:
            return []
        hold = self._holds.get(key)
        if hold is not None and hold.client == who:
            self._release(key, hold)
        steps = self._queue.cancel(who, *numbers)
        self._queue.settle(key, steps)
        for get in self._forfeited.pop((who, key), ()):
            get.gated = False
            if self.admits(get, steps):
                self._queue.enter(get, steps)
        return steps

    def forfeit(self, call: CallBack) -> list[Step]:
        """A client has not answered for too long: items that were delivered to it are free for others, flagged."""
        hold = self._holds.get(call.key)
        if hold is None or hold.turn != call.turn:
            return []
        self._release(call.key, hold)
        for get in hold.gets:
            if not get.delivered:
                self._queue.suspend(get)
                self._forfeit(get)
        steps = self._queue.cancel(hold.client, *[get.number for get in hold.gets if get.delivered])
        self._queue.settle(call.key, steps)
        return steps

    def _forfeit(self, get: Get) -> None:
        get.gated = True
        self._forfeited.setdefault((get.consumer, get.key), {})[get] = None

    def _release(self, key: bytes, hold: _Hold) -> None:
        """The gets are like any others from now on."""
        for get in hold.gets:
            get.prefetched = get.gated = False
        self._open(key, hold)

    def _open(self, key: bytes, hold: _Hold) -> None:
        del self._holds[key]
        if hold.held:
            self._released[key] = hold.held

    # -- the queue's gate ---------------------------------------------------------------------------------------

    def admits(self, request: Get | Question, steps: list[Step]) -> bool:
        key, client = request.key, request.consumer
        if self._forfeited and type(request) is Get and (client, key) in self._forfeited:
            self._forfeit(request)  # it waits behind those before it, for it has been called back
            return False
        hold = self._holds.get(key)
        if hold is not None and hold.client != client:
            hold.held[request] = None
            if type(request) is Get:
                request.gated = True
            if not hold.turn:
                hold.turn = next(self._turns)
                steps.append((Act.CALL_BACK, CallBack(hold.client, key, hold.turn)))
            return False
        if type(request) is not Get:
            steps.append((Act.ANSWER, request))
            return False
        request.gated = request.prefetched
        if request.prefetched:
            if hold is None:
                hold = self._holds[key] = _Hold(client)
            hold.gets[request] = None
        return True

    def left(self, get: Get) -> bool:
        hold = self._holds.get(get.key)
        if hold is not None and get in hold.gets:
            del hold.gets[get]
            if not hold.gets:
                self._open(get.key, hold)
            return True
        if hold is not None and get in hold.held:
            del hold.held[get]
            return False
        forfeited = self._forfeited[get.consumer, get.key]
        del forfeited[get]
        if not forfeited:
            del self._forfeited[get.consumer, get.key]
        return False

    def discard(self, steps: list[Step]) -> None:
        for hold in self._holds.values():
            steps += [(Act.ANSWER, request) for request in hold.held if type(request) is Question]
        self._holds.clear()
        self._forfeited.clear()
