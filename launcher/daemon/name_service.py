"""The name service on node 0 for the run's groups, channels and promised channels; lookups may wait."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from rlinf_async._core import frames, operations
from rlinf_async._core.name_table import PENDING, ChannelNames, GroupNames, NameTable, PromiseNames
from rlinf_async.errors import ClosedError

from .handlers import LATER, Requester


class NameService:
    """Handlers for operations on names; ``answer`` replies to a request that waited, unless its process is ``gone``."""

    def __init__(self, answer: Callable[..., None], gone: Container[int], lost: Sequence[dict[str, Any]]) -> None:
        self._answer = answer
        self._gone = gone
        self._lost = lost
        self.groups = GroupNames()
        self.channels = ChannelNames(self._is_gone)
        self.promises = PromiseNames(self.channels, self._is_gone)
        self._tables: dict[str, NameTable[Any]] = {
            table.kind: table for table in (self.groups, self.channels, self.promises)
        }

    def _table(self, kind: str) -> NameTable[Any]:
        if (table := self._tables.get(kind)) is None:
            raise ValueError(f"there are names of kind {', '.join(self._tables)}, and none of kind {kind!r}")
        return table

    async def reserve(self, requester: Requester, op: operations.Reserve) -> int:
        return self._table(op.kind).reserve(op.name, requester.endpoint)

    async def publish(self, requester: Requester, op: operations.Publish) -> Any:
        """Publish the roster of a name; return None, or the roster of the entry that already holds the name."""
        table = self._table(op.kind)
        known = table.publish(op.name, op.number, requester.endpoint, op.roster)
        self._settle(table)
        return known

    async def find(self, requester: Requester, op: operations.Find) -> Any:
        """Return the roster of a name, immediately or once it is published."""
        found = self._table(op.kind).find(requester, op.name, op.rank, op.after)
        return LATER if found is PENDING else found

    async def cancel_find(self, requester: Requester, op: operations.CancelFind) -> list[str]:
        """Cancel the lookup with that number; return the known names."""
        table = self._table(op.kind)
        table.cancel((requester.endpoint, op.number))
        return table.names()

    async def release(self, requester: Requester, op: operations.Release) -> bool:
        table = self._table(op.kind)
        released = table.release(op.number, requester.endpoint)
        self._settle(table)
        return released

    async def join_group(self, requester: Requester, op: operations.JoinGroup) -> None:
        """Add a worker that was not launched to the group that it names; the group's other ranks may join later."""
        self.groups.join(op.name, op.rank, op.size, requester.endpoint, op.entry)
        self._settle(self.groups)

    def rank_returned(self, requester: Requester, op: operations.RankReturned) -> None:
        """Record that a rank of the requester's group has been restarted, or will not be."""
        self.groups.replace(op.number, requester.endpoint, op.rank, op.was, op.entry)
        self._settle(self.groups)

    async def is_alive(self, requester: Requester, op: operations.IsAlive) -> bool:
        entry = self.groups.rank_of(op.group, op.rank)
        return entry is not None and not self._is_gone(entry["endpoint"])

    async def comes_back(self, requester: Requester, op: operations.ComesBack) -> bool:
        """True if this endpoint's rank will be restarted after the process ends."""
        return self.groups.comes_back(op.endpoint)

    async def queue_ended(self, requester: Requester, op: operations.QueueEnded) -> None:
        """Record that a daemon's queue of a channel has ended."""
        if frames.number_of(requester.endpoint):
            raise ValueError("queue_ended: only a daemon knows that")
        self.channels.end(op.number, frames.node_of(requester.endpoint))

    async def pin_key(self, requester: Requester, op: operations.PinKey) -> int | None:
        """Return the node to which a distributed channel's key is pinned: its first user's node."""
        return self.channels.pin(op.number, op.key, op.node)

    def progress(self, op: operations.Find) -> str:
        if op.kind == self.promises.kind:
            return "the process that has passed it on is still making it"
        table = self._table(op.kind)
        if op.name in table.named:
            return f"{op.kind} '{op.name}' is being started"
        return f"{op.kind} '{op.name}' is not there; there are: {', '.join(table.names()) or 'none'}"

    def drop_client(self, gone: int) -> None:
        """Release an ended process's names, except its channels, and cancel its lookups."""
        for table in self._tables.values():
            table.drop_client(gone)
        self._settle(*self._tables.values())

    def drop_owner(self, gone: int) -> None:
        """Close the channels of a driver that has ended, or of a worker whose group is closed."""
        self.channels.drop_owner(gone)

    def lose_node(self, node: int) -> None:
        self.channels.lose_node(node)

    def clients(self) -> set[int]:
        return set().union(*(table.clients() for table in self._tables.values()))

    def _settle(self, *tables: NameTable[Any]) -> None:
        for table in tables:
            for waiter, answer in table.settle():
                if isinstance(answer, ClosedError):
                    self._answer(waiter, ["ClosedError", str(answer)], ok=False)
                else:
                    self._answer(waiter, answer)

    def _is_gone(self, endpoint: int) -> bool:
        return endpoint in self._gone or any(facts["node"] == frames.node_of(endpoint) for facts in self._lost)
