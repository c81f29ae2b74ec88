"""``Locks``: the run's device locks, on node 0; grants them, queues requesters, and frees dead processes' locks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rlinf_async._core import operations
from rlinf_async._core.resource_locks import DeviceLocks, Ticket

from .handlers import LATER, Requester


class Locks:
    """The run's device locks; the requester identifies an acquisition, and ``answer`` grants one that had to wait."""

    def __init__(self, answer: Callable[[Ticket, Any], None]) -> None:
        self._answer = answer
        self._devices = DeviceLocks()

    async def lock_devices(self, requester: Requester, op: operations.LockDevices) -> Any:
        """Lock devices by cluster-wide id; answer once the requester holds all of them."""
        granted = self._devices.take(Ticket(*requester), op.name, op.devices)
        return None if granted else LATER

    async def unlock_devices(self, requester: Requester, op: operations.UnlockDevices) -> list[str]:
        """Undo the lock request with that number, granted or not; return the holders that it was waiting for."""
        ticket = Ticket(requester.endpoint, op.number)
        in_the_way = self._devices.names(ticket)
        self._answer_acquired(self._devices.release(ticket))
        return in_the_way

    def drop(self, holder: int) -> None:
        self._answer_acquired(self._devices.drop(holder))

    def in_the_way(self, ticket: Ticket) -> list[str]:
        return self._devices.names(ticket)

    def holders(self) -> set[int]:
        return self._devices.holders()

    def status(self) -> dict[str, list[int]]:
        held: dict[str, set[int]] = {}
        for request in self._devices.held.values():
            held.setdefault(request.name, set()).update(request.devices)
        return {name: sorted(devices) for name, devices in held.items()}

    def _answer_acquired(self, granted: Iterable[Ticket]) -> None:
        for ticket in granted:
            self._answer(ticket, None)
