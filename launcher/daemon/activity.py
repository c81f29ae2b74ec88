"""Answers diagnostic requests about long waits: worker states and open calls, progress of requests, queue content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from rlinf_async._core import clock, operations
from rlinf_async._core.resource_locks import Ticket
from rlinf_async._inspection.state.run_report import IN_DEBUGGER

from .channels import Channels
from .device_locks import Locks
from .endpoint import Endpoint
from .handlers import Requester
from .name_service import Names
from .process_state import state_of
from .router import Router
from .templates import Templates

_MAX_CALLS: Final = 5
"""Open calls of a worker that are told."""


class Activity:
    """Handlers that describe this node's processes, as its daemon and the kernel know them, without waiting for any."""

    def __init__(
        self,
        router: Router,
        templates: Templates,
        names: Names,
        channels: Channels,
        locks: Locks,
        in_debugger: Mapping[int, str],
    ) -> None:
        self._router = router
        self._in_debugger = in_debugger
        self._channels = channels
        self._progress: dict[type[operations.Operation[Any]], Callable[[Ticket, Any], str]] = {
            operations.Find: lambda ticket, op: names.progress(op),
            operations.LockDevices: lambda ticket, op: _holders(locks.in_the_way(ticket)),
            operations.Spawn: lambda ticket, op: templates.describe(),
            operations.CloseGroup: lambda ticket, op: self._group(op.group),
        }

    async def worker_activity(self, requester: Requester, op: operations.WorkerActivity) -> list[Any]:
        """``[state, calls, count]`` of each worker of the ``numbers``; None of one that is not there any more.

        The state is what is unusual about its process, the calls are ``[method, seconds]`` of the oldest ones of so
        many that are open.
        """
        now = clock.monotonic()
        found = [self._router.endpoints.get(number) for number in op.numbers]
        return [
            [self._state(worker), worker.pending_calls.ages(now, _MAX_CALLS), len(worker.pending_calls)]
            if worker is not None and worker.exit_report is None
            else None
            for worker in found
        ]

    async def request_progress(self, requester: Requester, op: operations.RequestProgress) -> str:
        """What an open request of this process waits for here, in words."""
        waiting = operations.read(op.operation, op.fields)
        tell = self._progress.get(type(waiting))
        return "" if tell is None else tell(Ticket(requester.endpoint, op.number), waiting)

    async def queue_state(self, requester: Requester, op: operations.QueueState) -> str:
        """What is in the channel with this ``number``, under a ``key``, and who waits there."""
        return self._channels.describe(op.number, op.key)

    def _group(self, name: str) -> str:
        """The processes of a group that have not ended."""
        alive = [
            f"{worker.process.setup.name}{f' ({state})' if (state := self._state(worker)) else ''}"
            for worker in self._router.endpoints.values()
            if worker.process is not None and worker.process.setup.group == name and worker.process.exit_status is None
        ]
        return f"still alive: {', '.join(alive)}" if alive else ""

    def _state(self, worker: Endpoint) -> str:
        """Return what is unusual about a process, in words."""
        if where := self._in_debugger.get(worker.id):
            return f"{IN_DEBUGGER} at {where}"
        if worker.process is not None:
            return state_of(worker.process.pid, worker.process.image)
        return state_of(worker.pid, None) if worker.pid else ""


def _holders(names: list[str]) -> str:
    return f"taken by {', '.join(names)}" if names else ""
