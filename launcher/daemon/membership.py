"""Membership in the run: node 0 decides which nodes are lost and numbers the losses; other nodes report broken links.

A node whose link to another node has ended does not know which of the two is cut off.  So it reports to node 0, and
frames to the other node wait for the decision.  Node 0 declares a node lost if its own link to the node has ended; if
it reaches two nodes that do not reach each other, it declares the one with the higher number lost. The numbered
decision reaches every node before any consequence of the loss, and drivers and the launcher receive it from their own
node, so all of them see the losses in the same order.

A node that node 0 cannot reach, or has declared lost, must not continue: it is *cut off* and ends itself.  If the
daemon of node 0 itself has ended, no decision can come, and each node decides by its own links.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rlinf_async import settings
from rlinf_async._core import frames, operations
from rlinf_async._core.own_logger import own_logger
from rlinf_async.errors import AuthError

from .handlers import Requester
from .node_link import NodeLink
from .router import Router

logger = own_logger(__name__)


class Membership:
    """Membership state of one node; ``epoch`` counts the losses that node 0 has declared.

    ``on_lost`` applies a loss, given as ``node``, ``name``, ``reason`` and ``epoch``; ``on_cut_off`` ends this node.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self.on_lost: Callable[[NodeLink, dict[str, Any]], None]
        self.on_cut_off: Callable[[str], None]
        self._open_checks: dict[asyncio.Future[None], int] = {}
        """Maps the future of each answer to the node that was asked whether it is alive."""
        self._is_closed = False
        self.epoch = 0

    def link_over(self, node_link: NodeLink, reason: str) -> None:
        first = self._router.node_links.get(0)
        if node_link.lost is not None:
            return
        if self._router.node == 0:
            self._declare(node_link.node, reason)
        elif node_link.node == 0 and not node_link.peer_has_ended:
            self.on_cut_off(reason)
        elif node_link.node == 0:
            for each in list(self._router.node_links.values()):
                if each.over is not None:
                    self._lose(each, each.over)
        elif first is None or first.lost is not None:
            self._lose(node_link, reason)
        else:
            self._router.request(0, operations.ReportLink(node_link.node, reason))

    async def report_link(self, requester: Requester, op: operations.ReportLink) -> None:
        """Handle another daemon's report that its link to a node has ended."""
        reporter = self._daemon(requester)
        # A run that ends closes its links one by one.  Once this node is closing, neither an answer nor the end of a
        # link resolves the wait below, and the daemon waits for its handlers, so later reports must be ignored.
        # tests/launcher/daemon/test_membership.py::test_a_report_that_comes_while_node_0_ends_is_ignored
        if self._is_closed or self._is_lost(reporter) or self._is_lost(op.node):
            return
        # The reported node itself confirms over its link to this node that it is alive. If it is dead, that link ends,
        # so this node declares it lost, which cancels the wait.
        answer = self._router.ask(op.node, operations.AnswerNode())
        self._open_checks[answer] = op.node
        await asyncio.wait([answer])
        del self._open_checks[answer]
        if not answer.cancelled() and not self._is_lost(reporter) and not self._is_lost(op.node):
            names = {node: self._router.node_links[node].name for node in (reporter, op.node)}
            lost = max(names)
            self._declare(lost, f"no way between {names[reporter]} and {names[op.node]} ({op.reason})")

    async def answer_node(self, requester: Requester, op: operations.AnswerNode) -> None:
        """Confirm that this node is alive."""

    async def node_is_lost(self, requester: Requester, op: operations.NodeIsLost) -> None:
        if self._daemon(requester) != 0:
            raise AuthError(f"node {frames.node_of(requester.endpoint)} declares node {op.node} lost: node 0 does that")
        if op.epoch <= self.epoch:
            return
        self.epoch = op.epoch
        if op.node == self._router.node:
            self.on_cut_off(f"node 0 has declared it lost: {op.reason}")
        elif (node_link := self._router.node_links.get(op.node)) is not None:
            # No link exists if the node was lost before its link was established.
            self._lose(node_link, op.reason)

    async def set_lease(self, requester: Requester, op: operations.SetLease) -> None:
        """Set the lease of all of this node's links; every node receives the same request."""
        if not settings.LEASE_S.minimum <= op.seconds <= settings.LEASE_S.maximum:
            raise ValueError(f"a lease of {op.seconds:g} s is out of bounds")
        for node_link in self._router.node_links.values():
            node_link.set_lease(float(op.seconds))

    def close(self) -> None:
        """Stop deciding, and cancel open checks."""
        self._is_closed = True
        for answer in self._open_checks:
            answer.cancel()

    def _daemon(self, requester: Requester) -> int:
        """Return the node whose daemon made the request; raise AuthError for any other process."""
        if frames.number_of(requester.endpoint):
            raise AuthError("only daemons tell each other which nodes are lost")
        return frames.node_of(requester.endpoint)

    def _is_lost(self, node: int) -> bool:
        node_link = self._router.node_links.get(node)
        return node_link is None or node_link.lost is not None

    def _declare(self, node: int, reason: str) -> None:
        self.epoch += 1
        logger.warning("epoch %d: node %d is lost", self.epoch, node)
        for node_link in self._router.node_links.values():
            if node_link.over is None:
                self._router.request(node_link.node, operations.NodeIsLost(self.epoch, node, reason))
        self._lose(self._router.node_links[node], reason)
        for answer, asked in self._open_checks.items():
            if asked == node:
                answer.cancel()

    def _lose(self, node_link: NodeLink, reason: str) -> None:
        if node_link.lost is None:
            node_link.lost = reason
            facts = {"node": node_link.node, "name": node_link.name, "reason": reason, "epoch": self.epoch}
            self.on_lost(node_link, facts)
