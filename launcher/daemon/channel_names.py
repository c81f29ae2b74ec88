"""Directory of the run's channels, on node 0: numbers, names, pinned keys, promised channels; lookups may wait."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from rlinf_async._core import frames, operations

from .channel_table import ChannelTable, Waiter
from .handlers import LATER, Requester


class ChannelNames:
    """Handlers of the operations on the run's table of channels.

    Args:
        answer: answers a request that has waited.
        gone: processes that are no more.
        lost: the nodes that are lost.
    """

    def __init__(
        self, answer: Callable[[Waiter, Any], None], gone: Container[int], lost: Sequence[dict[str, Any]]
    ) -> None:
        self._answer = answer
        self._gone = gone
        self._lost = lost
        self.table = ChannelTable(self._is_gone)

    async def number_channel(self, requester: Requester, op: operations.NumberChannel) -> int:
        """A number for a channel that is about to be made."""
        return self.table.next_number()

    async def name_channel(self, requester: Requester, op: operations.NameChannel) -> Any:
        """Makes a channel known; what is known by that name, which is another one if it was taken."""
        known, waiters = self.table.add(op.name, requester.endpoint, op.roster)
        self._answer_waiters(waiters, known)
        return known

    async def unname_channel(self, requester: Requester, op: operations.UnnameChannel) -> bool:
        """The name is free."""
        return self.table.close(op.number)

    async def queue_ended(self, requester: Requester, op: operations.QueueEnded) -> None:
        """A daemon has nothing of a channel any more."""
        if frames.number_of(requester.endpoint):
            raise ValueError("queue_ended: only a daemon knows that")
        self.table.ended(op.number, frames.node_of(requester.endpoint))

    async def find_channel(self, requester: Requester, op: operations.FindChannel) -> Any:
        """What is known by a name; answered when there is something."""
        known = self.table.find(op.name, requester)
        return LATER if known is None else known

    async def cancel_find_channel(self, requester: Requester, op: operations.CancelFindChannel) -> list[str]:
        """Ends the request of that number; the names that there are."""
        self.table.forget_waiters(lambda waiter: waiter == (requester.endpoint, op.number))
        return self.table.names()

    async def pin_key(self, requester: Requester, op: operations.PinKey) -> int | None:
        """The node that has a key of a distributed channel: that of whoever touched it first."""
        return self.table.pin(op.number, op.key, op.node)

    async def promise_channel(self, requester: Requester, op: operations.PromiseChannel) -> None:
        """A channel is passed on that has no number yet."""
        self.table.promise(requester.endpoint, op.promise)

    async def keep_promise(self, requester: Requester, op: operations.KeepPromise) -> None:
        """Which channel that is; None if it will never be, and why it could not be made."""
        known, waiters = self.table.keep(requester.endpoint, op.promise, op.number, op.why)
        self._answer_waiters(waiters, known)

    async def redeem_promise(self, requester: Requester, op: operations.RedeemPromise) -> Any:
        """The channel that was passed on before it had a number; None if that is closed, or why it could not be made.

        Answered when it is known.
        """
        is_known, known = self.table.redeem(op.maker, op.promise, requester)
        return known if is_known else LATER

    def drop_client(self, gone: int) -> None:
        """A process is no more."""
        self._answer_waiters(self.table.drop_client(gone), None)

    def drop_owner(self, gone: int) -> None:
        """A driver is no more, or a worker's group."""
        self.table.drop_owner(gone)

    def _answer_waiters(self, waiters: Iterable[Waiter], known: Any) -> None:
        for waiter in waiters:
            self._answer(waiter, known)

    def _is_gone(self, endpoint: int) -> bool:
        return endpoint in self._gone or any(facts["node"] == frames.node_of(endpoint) for facts in self._lost)
