"""Node 0's operations on locks of devices that several workers want."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rlinf_async._core.resource_locks import DeviceLocks, Ticket

from .channels import LATER


class Locks:
    """The run's device locks.  An acquisition is known by its asker and by the number of its ask.

    Args:
        answer: tells an asker, by its ask, that it has what it waited for.
    """

    def __init__(self, answer: Callable[[int, int, bool, Any], None]) -> None:
        self._answer = answer
        self._devices = DeviceLocks()

    async def do_lock_devices(self, source: int, ask: int, arguments: Any) -> Any:
        """Answered once the devices, ids of the whole cluster, are the asker's."""
        granted = self._devices.take(Ticket(source, ask), arguments["name"], arguments["devices"])
        return True if granted else LATER

    async def do_unlock_devices(self, source: int, ask: int, arguments: Any) -> list[str]:
        """Undoes the ask of that number, answered or not; who has stood in its way."""
        ticket = Ticket(source, arguments["ask"])
        in_the_way = self._devices.names(ticket)
        self._tell(self._devices.give_back(ticket))
        return in_the_way

    def drop(self, holder: int) -> None:
        """A process is no more."""
        self._tell(self._devices.drop(holder))

    def in_the_way(self, ticket: Ticket) -> list[str]:
        """The names of those whom a ticket that waits has to wait for."""
        return self._devices.names(ticket)

    def holders(self) -> set[int]:
        """The processes that have or want a lock."""
        return self._devices.holders()

    def status(self) -> dict[str, list[int]]:
        """The devices that are held, by the holder's name."""
        held: dict[str, set[int]] = {}
        for wish in self._devices.held.values():
            held.setdefault(wish.name, set()).update(wish.devices)
        return {name: sorted(devices) for name, devices in held.items()}

    def _tell(self, granted: Iterable[Ticket]) -> None:
        for ticket in granted:
            self._answer(ticket.holder, ticket.number, True, True)
