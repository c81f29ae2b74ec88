"""Operations on ranks stuck in a collective: check for owed calls, find stopped (SIGSTOP) ranks, kill a stuck one."""

from __future__ import annotations

from rlinf_async._core import frames, operations

from .handlers import Requester
from .process_state import is_stopped
from .router import Router


class StuckRanks:
    """Handlers of one daemon for collectives that a failed rank has left."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def owes_call(self, requester: Requester, op: operations.OwesCall) -> bool:
        """Whether a worker owes a call of this ``source``, or one that was made ``after`` another."""
        endpoint = self._router.endpoints.get(op.number)
        if endpoint is None or endpoint.exit_report is not None:
            return False
        return endpoint.pending_calls.is_pending(op.source, op.call) or endpoint.pending_calls.has_later(
            op.source, op.after
        )

    async def kill_stuck(self, requester: Requester, op: operations.KillStuck) -> None:
        """Kill the requester, whose main thread cannot be freed, or one of whose background tasks has failed."""
        endpoint = self._router.endpoints.get(frames.number_of(requester.endpoint))
        if frames.node_of(requester.endpoint) != self._router.node or endpoint is None or endpoint.process is None:
            raise ValueError("only a worker of this node can ask for its end")
        endpoint.process.kill(op.verdict)

    async def find_stopped(self, requester: Requester, op: operations.FindStopped) -> list[int]:
        """Which of these workers of this node are stopped (SIGSTOP, a debugger)."""
        stopped: list[int] = []
        for number in op.numbers:
            endpoint = self._router.endpoints.get(number)
            if endpoint is not None and endpoint.process is not None and is_stopped(endpoint.process.pid):
                stopped.append(number)
        return stopped
