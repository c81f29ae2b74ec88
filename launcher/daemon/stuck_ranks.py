"""Ranks that others wait for: whether they may come yet, whether they are stopped, and the end of stuck ones."""

from __future__ import annotations

from typing import Any

from rlinf_async._core import frames

from .process_state import is_stopped
from .router import Router


class StuckRanks:
    """The operations of one daemon that concern collectives which a failed rank has left."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def do_may_come(self, source: int, ask: int, arguments: Any) -> bool:
        """Whether a worker owes a call of this source, or one that was made ``after`` another."""
        endpoint = self._router.endpoints.get(arguments["number"])
        if endpoint is None or endpoint.obituary is not None:
            return False
        caller, debts = arguments["source"], endpoint.debts
        return debts.owes(caller, arguments["call"]) or debts.owes_after(caller, arguments["after"])

    async def do_end_stuck(self, source: int, ask: int, arguments: Any) -> bool:
        """Kills the asker, whose main thread cannot be freed."""
        endpoint = self._router.endpoints.get(frames.number_of(source))
        if frames.node_of(source) != self._router.node or endpoint is None or endpoint.process is None:
            raise ValueError("only a worker of this node can ask for its end")
        endpoint.process.kill(str(arguments["verdict"]))
        return True

    async def do_stopped(self, source: int, ask: int, arguments: Any) -> list[int]:
        """Which of these workers of this node are stopped (SIGSTOP, a debugger)."""
        stopped: list[int] = []
        for number in arguments["numbers"]:
            endpoint = self._router.endpoints.get(number)
            if endpoint is not None and endpoint.process is not None and is_stopped(endpoint.process.pid):
                stopped.append(number)
        return stopped
