"""``DebugRelay``: forwards lines between operators and ranks' debuggers, and tracks all ranks stopped in a debugger.

Every daemon learns of every rank of the run that stops, and informs its own processes, so that deadlines are extended
on every node.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

from rlinf_async._core import frames, operations
from rlinf_async.errors import LaunchError

from .handlers import Requester
from .router import Router

_WORDS: Final = frozenset(("attach", "line", "detach"))


class DebugRelay:
    """One daemon's handlers for debugging; ``stopped`` maps each stopped rank of the run to its location."""

    def __init__(self, router: Router, gone: Container[int]) -> None:
        self._router = router
        self._gone = gone
        self.stopped: dict[int, str] = {}
        self._operator_of: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<DebugRelay [{len(self.stopped)} ranks in the debugger]>"

    async def debug_rank(self, requester: Requester, op: operations.DebugRank) -> None:
        """Forward an operator's line, attach or detach to a rank's debugger.  Raises LaunchError if it has ended."""
        if op.what not in _WORDS:
            raise ValueError(f"DebugRank: what is one of {', '.join(sorted(_WORDS))}, got {op.what!r}")
        rank = self._router.endpoints.get(op.number)
        if rank is None or rank.process is None or rank.exit_report is not None:
            raise LaunchError("it is a subprocess of a worker, or has ended")
        if op.what == "attach":
            self._operator_of.setdefault(rank.id, requester.endpoint)
        elif op.what == "detach" and self._operator_of.get(rank.id) == requester.endpoint:
            del self._operator_of[rank.id]
        self._router.send_event(rank.id, "debug", {"operator": requester.endpoint, "what": op.what, "line": op.line})

    async def debug_said(self, requester: Requester, op: operations.DebugSaid) -> None:
        self._tell(op.operator, requester.endpoint, op.state, op.text)

    async def rank_stopped(self, requester: Requester, op: operations.RankStopped) -> None:
        """Record that a rank has stopped in the debugger or continues; the rank's daemon informs the others."""
        if frames.number_of(requester.endpoint):
            op = operations.RankStopped(requester.endpoint, op.name, op.where, op.attached)
        # A request runs as a task and may start after the rank was dropped; recording its stop would then extend
        # deadlines forever.
        # tests/launcher/daemon/test_debug_relay.py::test_a_stop_reported_after_its_ranks_end_is_ignored
        if op.where and op.endpoint in self._gone:
            return
        if frames.number_of(requester.endpoint):
            for node_link in self._router.node_links.values():
                if node_link.over is None:
                    self._router.request(node_link.node, op)
        self._note(op.endpoint, op.name, op.where, attached=op.attached)

    def drop(self, gone: int) -> None:
        """Handle an endpoint's end: detach an ended operator's ranks, or inform an ended rank's operator."""
        for rank in [rank for rank, operator in self._operator_of.items() if operator == gone]:
            del self._operator_of[rank]
            self._router.send_event(rank, "debug", {"operator": gone, "what": "detach", "line": ""})
        if (operator := self._operator_of.pop(gone, None)) is not None:
            self._tell(operator, gone, "ended", "")
        if gone in self.stopped:
            self._note(gone, "", "", attached=False)

    def drop_node(self, node: int) -> None:
        for gone in [each for each in (*self.stopped, *self._operator_of.values()) if frames.node_of(each) == node]:
            self.drop(gone)

    def _note(self, endpoint: int, name: str, where: str, *, attached: bool) -> None:
        if where:
            self.stopped[endpoint] = where
        else:
            self.stopped.pop(endpoint, None)
        facts: dict[str, Any] = {"endpoint": endpoint, "name": name, "where": where, "attached": attached}
        self._router.broadcast_event("debugger", facts)

    def _tell(self, operator: int, rank: int, state: str, text: str) -> None:
        self._router.send_event(operator, "debug", {"rank": rank, "state": state, "text": text})
