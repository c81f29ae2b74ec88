"""Node 0's operations on channels: numbers and names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

from rlinf_async._channels.state.channel_table import ChannelTable, Waiter
from rlinf_async._core import frames

from .channels import LATER


class ChannelNames:
    """The table of the run's channels.

    Args:
        answer: tells an asker, by its ask, what it waited for.
        gone: processes that are no more.
        lost: the nodes that are lost.
    """

    def __init__(
        self, answer: Callable[[int, int, bool, Any], None], gone: Set[int], lost: Sequence[dict[str, Any]]
    ) -> None:
        self._answer = answer
        self._gone = gone
        self._lost = lost
        self.table = ChannelTable(self._is_gone)

    async def do_number_channel(self, source: int, ask: int, arguments: Any) -> int:
        """A number for a channel that is about to be made."""
        return self.table.next_number()

    async def do_name_channel(self, source: int, ask: int, arguments: Any) -> Any:
        """Makes a channel known; what is known by that name, which is another one if it was taken."""
        known, waiters = self.table.add(arguments["name"], source, arguments["roster"])
        self._tell(waiters, known)
        return known

    async def do_unname_channel(self, source: int, ask: int, arguments: Any) -> bool:
        """The name is free."""
        return self.table.close(arguments["number"])

    async def do_queue_ended(self, source: int, ask: int, arguments: Any) -> bool:
        """A daemon has nothing of a channel any more."""
        if frames.number_of(source):
            raise ValueError("queue_ended: only a daemon knows that")
        self.table.ended(arguments["number"], frames.node_of(source))
        return True

    async def do_find_channel(self, source: int, ask: int, arguments: Any) -> Any:
        """What is known by a name; answered when there is something."""
        known = self.table.find(arguments["name"], (source, ask))
        return LATER if known is None else known

    async def do_forget_find(self, source: int, ask: int, arguments: Any) -> list[str]:
        """Nobody waits any more for what the ``ask`` was to find; the names that there are."""
        self.table.forget_waiters(lambda waiter: waiter == (source, arguments["ask"]))
        return self.table.names()

    async def do_pin_key(self, source: int, ask: int, arguments: Any) -> int | None:
        """The node that has a key of a distributed channel: that of whoever touched it first."""
        return self.table.pin(arguments["number"], arguments["key"], arguments["node"])

    async def do_promise_channel(self, source: int, ask: int, arguments: Any) -> bool:
        """A channel is passed on that has no number yet."""
        self.table.promise(source, arguments["promise"])
        return True

    async def do_keep_promise(self, source: int, ask: int, arguments: Any) -> bool:
        """Which channel that is; None if it will never be."""
        known, waiters = self.table.keep(source, arguments["promise"], arguments["number"])
        self._tell(waiters, known)
        return True

    async def do_redeem_promise(self, source: int, ask: int, arguments: Any) -> Any:
        """The channel that was passed on before it had a number, None if that is closed; answered when it is known."""
        is_known, known = self.table.redeem(arguments["maker"], arguments["promise"], (source, ask))
        return known if is_known else LATER

    def drop_party(self, gone: int) -> None:
        """A process is no more."""
        self._tell(self.table.drop_party(gone), None)

    def drop_owner(self, gone: int) -> None:
        """A driver is no more, or a worker's group."""
        self.table.drop_owner(gone)

    def _tell(self, waiters: Iterable[Waiter], known: Any) -> None:
        for waiter, ask in waiters:
            self._answer(waiter, ask, True, known)

    def _is_gone(self, endpoint: int) -> bool:
        return endpoint in self._gone or any(facts["node"] == frames.node_of(endpoint) for facts in self._lost)
