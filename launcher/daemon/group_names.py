"""Node 0's operations on names: the directory of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

from rlinf_async._core import frames
from rlinf_async._core.directory import Directory

from .channels import LATER


class Names:
    """Which group is called what, and who waits to hear of it.

    Args:
        answer: tells an asker, by its ask, what it waited for.
        gone: processes that are no more; nothing is done for them.
        lost: the nodes that are lost.
    """

    def __init__(
        self, answer: Callable[[int, int, bool, Any], None], gone: Set[int], lost: Sequence[dict[str, Any]]
    ) -> None:
        self._answer = answer
        self._gone = gone
        self._lost = lost
        self.directory = Directory()

    async def do_reserve(self, source: int, ask: int, arguments: Any) -> bool:
        """Takes a name for a group that is about to be launched."""
        name = arguments["name"]
        if not self.directory.reserve(name, source):
            raise ValueError(
                f"a group named '{name}' exists already: close it first, or give this one another name= in launch()"
            )
        return True

    async def do_publish(self, source: int, ask: int, arguments: Any) -> bool:
        """Makes a roster known under its name."""
        for waiter, waiting_ask in self.directory.publish(arguments["name"], source, arguments["roster"]):
            self._answer(waiter, waiting_ask, True, arguments["roster"])
        return True

    async def do_join(self, source: int, ask: int, arguments: Any) -> bool:
        """Makes a worker known that was not launched; the others of its name may come later."""
        name, entry = arguments["name"], arguments["entry"]
        for waiter, waiting_ask in self.directory.join(name, arguments["rank"], arguments["size"], source, entry):
            self._answer(waiter, waiting_ask, True, self.directory.entries[name].roster_with(arguments["rank"]))
        return True

    async def do_lookup(self, source: int, ask: int, arguments: Any) -> Any:
        """The roster of a name; answered when there is one, with ``rank`` when it has that."""
        roster = self.directory.lookup(arguments["name"], (source, ask), arguments.get("rank"))
        return LATER if roster is None else roster

    async def do_forget_lookup(self, source: int, ask: int, arguments: Any) -> list[str]:
        """Nobody waits any more for what the lookup ``ask`` was to find; the names that there are.

        Without ``ask`` it is every lookup of that name by the same process.
        """
        of_ask = arguments.get("ask")
        for waiter in list(self.directory.waiters.get(arguments["name"], ())):
            if waiter[0] == source and of_ask in (None, waiter[1]):
                self.directory.forget_waiter(arguments["name"], waiter)
        return self.directory.names()

    async def do_release(self, source: int, ask: int, arguments: Any) -> bool:
        return self.directory.release(arguments["name"], source)

    async def do_is_alive(self, source: int, ask: int, arguments: Any) -> bool:
        """Whether there is a worker of that group and rank, and it has not ended."""
        entry = self.directory.find(arguments["group"], arguments["rank"])
        if entry is None:
            return False
        endpoint = entry["endpoint"]
        node = frames.node_of(endpoint)
        return endpoint not in self._gone and all(facts["node"] != node for facts in self._lost)

    def drop(self, gone: int) -> None:
        """A process is no more: what it owned is free, and nobody is to be told for it."""
        self.directory.drop_owner(gone)
        self.directory.drop_waiter(gone)

    def parties(self) -> set[int]:
        """The processes that own a name, or wait for one."""
        waiters = {waiter for waiting in self.directory.waiters.values() for waiter, _ in waiting}
        return waiters | self.directory.owners()
