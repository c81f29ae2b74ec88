"""``Relay``: executes a ``RelayPlan`` at the source. Sends messages and pieces to hosts, and reports results to the
plan."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from rlinf_async._core.error_copy import copy_of
from rlinf_async._core.failures import unpack_error
from rlinf_async._core.own_logger import own_logger
from rlinf_async._messaging.landing import abandon_works
from rlinf_async._messaging.state.relay_plan import LANDED, ROOM, NodeTransfer, RelayPlan, RelaySource
from rlinf_async.work import Work

logger = own_logger(__name__)

T = TypeVar("T")


class Relay:
    """The distributions from one source to other machines.

    A receiver has a ``link`` (as for ``RelayPlan``, plus ``error`` and ``send_tensor``) and a ``send`` for messages.

    Args:
        source: object whose methods are called one at a time, with the lock held.
        lock: reentrant lock held during events and actions, on any thread.
    """

    def __init__(self, source: RelaySource, lock: threading.RLock, chain_from: int) -> None:
        self.plan = RelayPlan(self, chain_from)
        self.appoint, self.inform, self.end = source.appoint, source.inform, source.end
        self._lock = lock
        self._is_acting = False

    def act(self, event: Callable[..., T], *facts: Any) -> T:
        with self._lock:
            result = event(*facts)
            # A message may fail immediately. The failure is another event, whose actions queue behind pending actions,
            # so that messages are sent in the order in which the plan requested them.
            if not self._is_acting:
                self._is_acting = True
                try:
                    while self.plan.actions:
                        action, arguments = self.plan.actions.popleft()
                        action(*arguments)
                finally:
                    self._is_acting = False
            return result

    def on_message(self, receiver: Any, kind: str, *facts: Any) -> None:
        if kind == ROOM:
            self.act(self.plan.room, receiver, *facts)
        elif kind == LANDED:
            number, failure, memory, stream_id = facts
            error = None if failure is None else unpack_error(failure)
            self.act(self.plan.landed, receiver, number, error, memory, stream_id)
        else:
            stream_id, failure = facts
            self.act(self.plan.stuck, receiver, stream_id, unpack_error(failure))

    # -- actions of the plan ------------------------------------------------------------------------------------

    def send(self, receiver: Any, *message: Any) -> None:
        if receiver.link.error is None:
            receiver.send_message(*message)

    def send_piece(self, transfer: NodeTransfer, receiver: Any, piece: Any) -> None:
        if not transfer.is_wanted:
            self.plan.sent(transfer, None)
            return
        work = receiver.link.send_tensor(piece, transfer.stream_id)
        transfer.works.append(work)
        work._follow(functools.partial(self._sent, transfer, work))

    def drop(self, transfer: NodeTransfer) -> None:
        abandon_works(transfer.works)

    def warn(self, text: str) -> None:
        logger.warning("%s", text)

    def _sent(self, transfer: NodeTransfer, work: Work[None]) -> None:
        error: Exception | None = None
        try:
            work._result()
        except Exception as failure:  # keep a copy: the error's traceback would keep the piece alive
            error = copy_of(failure)
        self.act(self.plan.sent, transfer, error)
