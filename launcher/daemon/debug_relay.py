"""``DebugRelay``: passes lines between operators and the debuggers of ranks; keeps which ranks of the run stand there.

Every daemon is told of every rank in the run that stands in the debugger, and tells its own processes: their deadlines
do not run out meanwhile, wherever the clock is.
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
    """Handlers of one daemon.

    Args:
        gone: processes of the run that are no more.

    Attributes:
        stopped: by endpoint, of the whole run: where ranks stand in the debugger.
    """

    def __init__(self, router: Router, gone: Container[int]) -> None:
        self._router = router
        self._gone = gone
        self.stopped: dict[int, str] = {}
        self._operators: dict[int, int] = {}
        """By rank of this node, the operator that is attached."""

    def __repr__(self) -> str:
        return f"<DebugRelay [{len(self.stopped)} ranks in the debugger]>"

    async def debug_rank(self, requester: Requester, op: operations.DebugRank) -> None:
        """Pass on a line of an operator, or its coming and going.

        Raises:
            LaunchError: there is no such rank here, or it has ended.
            ValueError: that is no such word.
        """
        if op.what not in _WORDS:
            raise ValueError(f"DebugRank: what is one of {', '.join(sorted(_WORDS))}, got {op.what!r}")
        rank = self._router.endpoints.get(op.number)
        if rank is None or rank.process is None or rank.exit_report is not None:
            raise LaunchError("it is a subprocess of a worker, or has ended")
        if op.what == "attach":
            self._operators.setdefault(rank.id, requester.endpoint)
        elif op.what == "detach" and self._operators.get(rank.id) == requester.endpoint:
            del self._operators[rank.id]
        self._router.send_event(rank.id, "debug", {"operator": requester.endpoint, "what": op.what, "line": op.line})

    async def debug_said(self, requester: Requester, op: operations.DebugSaid) -> None:
        """Pass on what the debugger of a rank says."""
        self._tell(op.operator, requester.endpoint, op.state, op.text)

    async def rank_stopped(self, requester: Requester, op: operations.RankStopped) -> None:
        """Note that a rank stands in the debugger, or goes on; a rank tells its own daemon, and that all others."""
        if frames.number_of(requester.endpoint):
            op = operations.RankStopped(requester.endpoint, op.name, op.where, op.attached)
        # A request is a task, which may begin when the rank has been dropped: it would hold up deadlines for ever.
        # tests/launcher/daemon/test_debug_relay.py::test_a_stop_that_is_told_after_the_end_of_its_rank_is_none
        if op.where and op.endpoint in self._gone:
            return
        if frames.number_of(requester.endpoint):
            for node_link in self._router.node_links.values():
                if node_link.over is None:
                    self._router.request(node_link.node, op)
        self._note(op.endpoint, op.name, op.where, attached=op.attached)

    def drop(self, gone: int) -> None:
        """An endpoint of the run is no more: an operator, whose ranks go on, or a rank, whose operator learns of it."""
        for rank in [rank for rank, operator in self._operators.items() if operator == gone]:
            del self._operators[rank]
            self._router.send_event(rank, "debug", {"operator": gone, "what": "detach", "line": ""})
        if (operator := self._operators.pop(gone, None)) is not None:
            self._tell(operator, gone, "ended", "")
        if gone in self.stopped:
            self._note(gone, "", "", attached=False)

    def drop_node(self, node: int) -> None:
        for gone in [each for each in (*self.stopped, *self._operators.values()) if frames.node_of(each) == node]:
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
