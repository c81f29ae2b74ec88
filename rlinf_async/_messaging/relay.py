"""``Relay``: carries out a ``RelayPlan`` at the source: words and pieces to hosts, and what comes of them."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from rlinf_async._core.failures import unpack_error
from rlinf_async._messaging.state.chain import CHAIN_FROM_BYTES
from rlinf_async._messaging.state.relay_plan import LANDED, ROOM, Do, RelayPlan, Way
from rlinf_async.work import Work

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Source(Protocol):
    """The owner of a relay; called with the lock held, one at a time."""

    def appoint(self, receiver: Any, line: int) -> None:
        """Tells a receiver that it is the host of its machine."""

    def inform(self, receiver: Any, memory: Any, number: int) -> None:
        """Tells a receiver what has landed on its machine, of which another one is the host."""

    def end(self, receivers: Sequence[Any], number: int, memory: Any, error: Exception | None) -> None:
        """Takes note that a payload is in the memory of these receivers' machine, or why it is not."""


class Relay:
    """Distributions of one source to other machines.

    A receiver has a ``link`` (as of ``RelayPlan``; with ``error`` and ``send_tensor``) and ``say``, which takes words.

    Args:
        lock: held while events and actions happen, in whatever thread; reentrant.

    Attributes:
        plan: decides; its events are given to ``act``.
    """

    def __init__(self, source: Source, lock: threading.RLock, chain_from: int = CHAIN_FROM_BYTES) -> None:
        self.plan = RelayPlan(chain_from)
        self._source = source
        self._lock = lock
        self._is_acting = False

    def act(self, event: Callable[..., T], *facts: Any) -> T:
        """Has an event happen to the plan, and carries out what that decides."""
        with self._lock:
            result = event(*facts)
            # What is said may fail at once, which is another event, and that event's actions come after those that are
            # due already: words leave in the order in which they were decided on.
            if not self._is_acting:
                self._is_acting = True
                try:
                    while self.plan.actions:
                        self._do(*self.plan.actions.popleft())
                finally:
                    self._is_acting = False
            return result

    def hear(self, receiver: Any, what: str, *facts: Any) -> None:
        """Hears a word of a host: ROOM, LANDED or STUCK."""
        if what == ROOM:
            self.act(self.plan.room, receiver, *facts)
        elif what == LANDED:
            number, failure, memory, line = facts
            error = None if failure is None else unpack_error(failure)
            self.act(self.plan.landed, receiver, number, error, memory, line)
        else:
            line, failure = facts
            self.act(self.plan.stuck, receiver, line, unpack_error(failure))

    def _do(self, do: Do, *facts: Any) -> None:
        if do is Do.SAY:
            receiver, words = facts
            if receiver.link.error is None:
                receiver.say(*words)
        elif do is Do.SEND:
            self._send(*facts)
        elif do is Do.DROP:
            for work in facts[0].works:
                if not work.done():
                    work._lose_interest()
        elif do is Do.APPOINT:
            self._source.appoint(*facts)
        elif do is Do.INFORM:
            self._source.inform(*facts)
        elif do is Do.END:
            self._source.end(*facts)
        else:
            logger.warning("%s", *facts)

    def _send(self, way: Way, receiver: Any, piece: Any) -> None:
        if not way.is_wanted:
            self.plan.sent(way, None)
            return
        work = receiver.link.send_tensor(piece, way.line)
        way.works.append(work)
        work._follow(functools.partial(self._sent, way, work))

    def _sent(self, way: Way, work: Work[None]) -> None:
        error: Exception | None = None
        try:
            work._result()
        except Exception as failure:
            error = failure
        self.act(self.plan.sent, way, error)
