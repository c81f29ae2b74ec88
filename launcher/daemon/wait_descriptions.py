"""Descriptions of long waits, for error messages: requests' progress at this daemon, and queues' contents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf_async._core import operations
from rlinf_async._core.resource_locks import Ticket

from .channels import Channels
from .device_locks import Locks
from .endpoint import Endpoint
from .handlers import Requester
from .name_service import NameService
from .router import Router
from .templates import Templates


class WaitDescriptions:
    """Handlers that describe why a request waits, without waiting themselves; ``state`` describes a process."""

    def __init__(
        self,
        router: Router,
        templates: Templates,
        names: NameService,
        channels: Channels,
        locks: Locks,
        state: Callable[[Endpoint], str],
    ) -> None:
        self._router = router
        self._state = state
        self._channels = channels
        self._progress: dict[type[operations.Operation[Any]], Callable[[Ticket, Any], str]] = {
            operations.Find: lambda ticket, op: names.progress(op),
            operations.LockDevices: lambda ticket, op: _holders(locks.in_the_way(ticket)),
            operations.Spawn: lambda ticket, op: templates.describe(),
            operations.CloseGroup: lambda ticket, op: self._live_workers_of(op.group),
        }

    async def request_progress(self, requester: Requester, op: operations.RequestProgress) -> str:
        """Describe why the requester's open request waits at this daemon; empty if unknown."""
        waiting = operations.read(op.operation, op.fields)
        tell = self._progress.get(type(waiting))
        return "" if tell is None else tell(Ticket(requester.endpoint, op.number), waiting)

    async def queue_state(self, requester: Requester, op: operations.QueueState) -> str:
        """Describe a channel's items under a key, and the requests waiting for that key."""
        return self._channels.describe(op.number, op.key)

    def _live_workers_of(self, name: str) -> str:
        alive = [
            f"{worker.process.setup.name}{f' ({state})' if (state := self._state(worker)) else ''}"
            for worker in self._router.endpoints.values()
            if worker.process is not None and worker.process.setup.group == name and worker.process.exit_status is None
        ]
        return f"still alive: {', '.join(alive)}" if alive else ""


def _holders(names: list[str]) -> str:
    return f"taken by {', '.join(names)}" if names else ""
