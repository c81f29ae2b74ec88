"""Directory of the run's worker groups, on node 0: reserves names, publishes and finds rosters; lookups may wait."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from rlinf_async._core import frames, operations
from rlinf_async._core.directory import Directory

from .handlers import LATER, Requester


class Names:
    """Handlers of the operations on group names; a lookup waits until its group is there.

    Args:
        answer: answers a request that has waited.
        gone: processes that are no more; nothing is done for them.
        lost: the nodes that are lost.
    """

    def __init__(self, answer: Callable[..., None], gone: Container[int], lost: Sequence[dict[str, Any]]) -> None:
        self._answer = answer
        self._gone = gone
        self._lost = lost
        self.directory = Directory()

    async def reserve_group(self, requester: Requester, op: operations.ReserveGroup) -> None:
        """Takes a name for a group that is about to be launched."""
        if not self.directory.reserve(op.name, requester.endpoint):
            raise ValueError(
                f"a group named '{op.name}' exists already: close it first, or give this one another name= in launch()"
            )

    async def publish_group(self, requester: Requester, op: operations.PublishGroup) -> None:
        """Makes a roster known under its name."""
        for waiter in self.directory.publish(op.name, requester.endpoint, op.roster, supervised=op.supervised):
            self._answer(waiter, op.roster)

    async def join_group(self, requester: Requester, op: operations.JoinGroup) -> None:
        """Makes a worker known that was not launched; the others of its name may come later."""
        for waiter in self.directory.join(op.name, op.rank, op.size, requester.endpoint, op.entry):
            self._answer(waiter, self.directory.entries[op.name].roster_with(op.rank))

    async def find_group(self, requester: Requester, op: operations.FindGroup) -> Any:
        """The roster of a name; answered when there is one, with ``rank`` when it has that."""
        roster = self.directory.lookup(op.name, requester, op.rank, op.after)
        return LATER if roster is None else roster

    def rank_returned(self, requester: Requester, op: operations.RankReturned) -> None:
        """A rank of the requester's group is back, or will not be."""
        for waiter in self.directory.replace(op.group, requester.endpoint, op.rank, op.was, op.entry):
            self._answer(waiter, self.directory.entries[op.group].roster)

    async def cancel_find_group(self, requester: Requester, op: operations.CancelFindGroup) -> list[str]:
        """Ends the request of that number; the names that there are."""
        for name in list(self.directory.waiters):
            self.directory.forget_waiter(name, (requester.endpoint, op.number))
        return self.directory.names()

    async def release_group(self, requester: Requester, op: operations.ReleaseGroup) -> bool:
        released = self.directory.release(op.name, requester.endpoint)
        self._refuse_orphans()
        return released

    def _refuse_orphans(self) -> None:
        for name, waiter in self.directory.orphaned_waiters():
            self._answer(waiter, ["ClosedError", f"group '{name}' was closed"], ok=False)

    async def is_alive(self, requester: Requester, op: operations.IsAlive) -> bool:
        """Whether there is a worker of that group and rank, and it has not ended."""
        entry = self.directory.find(op.group, op.rank)
        if entry is None:
            return False
        endpoint = entry["endpoint"]
        node = frames.node_of(endpoint)
        return endpoint not in self._gone and all(facts["node"] != node for facts in self._lost)

    async def comes_back(self, requester: Requester, op: operations.ComesBack) -> bool:
        """True if the worker that has this endpoint is to come back once it has ended."""
        return self.directory.comes_back(op.endpoint)

    def drop(self, gone: int) -> None:
        """A process is no more: what it owned is free, and nobody is to be told for it."""
        self.directory.drop_owner(gone)
        self.directory.drop_waiter(gone)
        self._refuse_orphans()

    def clients(self) -> set[int]:
        """The processes that own a name, or wait for one."""
        waiters = {waiter for waiting in self.directory.waiters.values() for waiter, _ in waiting}
        return waiters | self.directory.owners()
