"""Membership of the run: node 0 decides which nodes are lost, in epochs; the others report links, and act on its word.

A node whose link to another one is over knows only that: either may be cut off.  So it tells node 0, and what is sent
there meanwhile waits for the word.  Node 0 takes a node for lost that it has lost itself; of two that it reaches both
and that do not reach each other, the higher one.  Its word goes to every node, numbered, before anything that follows
from it, and drivers and launcher hear it from their own node: all see the same.

A node that node 0 does not reach, or has declared lost, must not go on: it is *cut off*, and ends itself.  Where node
0's daemon itself is gone there is no more word to wait for, and each node goes by its own links.
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
    """This node's part in it.

    Attributes:
        epoch: losses that node 0 has declared.
        on_lost: carries out the loss of another node: ``node``, ``name``, ``reason`` and ``epoch``.
        on_cut_off: ends this node, for the reason given.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self.on_lost: Callable[[NodeLink, dict[str, Any]], None]
        self.on_cut_off: Callable[[str], None]
        self._hearings: dict[asyncio.Future[None], int] = {}
        """Nodes that are asked whether they are there."""
        self._is_closed = False
        self.epoch = 0

    def link_over(self, node_link: NodeLink, reason: str) -> None:
        """A link of this node has ended."""
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
        """Of another daemon: its link to a node is over."""
        reporter = self._daemon(requester)
        # The links of a run that ends end one by one, and nothing more is decided then: no answer, and no link's end,
        # would end the wait, and this daemon waits for its handlers.
        # tests/launcher/daemon/test_membership.py::test_a_report_that_comes_while_node_0_ends_is_not_waited_for
        if self._is_closed or self._is_lost(reporter) or self._is_lost(op.node):
            return
        # Whether that node is there still, it says itself, over its link to this one.  If it is not, that link's end
        # declares it lost, and ends this wait.
        answer = self._router.ask(op.node, operations.AnswerNode())
        self._hearings[answer] = op.node
        await asyncio.wait([answer])
        del self._hearings[answer]
        if not answer.cancelled() and not self._is_lost(reporter) and not self._is_lost(op.node):
            names = {node: self._router.node_links[node].name for node in (reporter, op.node)}
            lost = max(names)
            self._declare(lost, f"no way between {names[reporter]} and {names[op.node]} ({op.reason})")

    async def answer_node(self, requester: Requester, op: operations.AnswerNode) -> None:
        """This node is there."""

    async def node_is_lost(self, requester: Requester, op: operations.NodeIsLost) -> None:
        """Node 0's word."""
        if self._daemon(requester) != 0:
            raise AuthError(f"node {frames.node_of(requester.endpoint)} declares node {op.node} lost: node 0 does that")
        if op.epoch <= self.epoch:
            return
        self.epoch = op.epoch
        if op.node == self._router.node:
            self.on_cut_off(f"node 0 has declared it lost: {op.reason}")
        elif (node_link := self._router.node_links.get(op.node)) is not None:  # else it was lost before its link was up
            self._lose(node_link, op.reason)

    async def set_lease(self, requester: Requester, op: operations.SetLease) -> None:
        """From now on that is the lease of each of this node's links; every node is told the same."""
        if not settings.LEASE_S.minimum <= op.seconds <= settings.LEASE_S.maximum:
            raise ValueError(f"a lease of {op.seconds:g} s is out of bounds")
        for node_link in self._router.node_links.values():
            node_link.set_lease(float(op.seconds))

    def close(self) -> None:
        """Nothing is decided any more."""
        self._is_closed = True
        for answer in self._hearings:
            answer.cancel()

    def _daemon(self, requester: Requester) -> int:
        """The node whose daemon has said it.

        Raises:
            AuthError: a process has.
        """
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
        for answer, asked in self._hearings.items():
            if asked == node:
                answer.cancel()

    def _lose(self, node_link: NodeLink, reason: str) -> None:
        if node_link.lost is None:
            node_link.lost = reason
            facts = {"node": node_link.node, "name": node_link.name, "reason": reason, "epoch": self.epoch}
            self.on_lost(node_link, facts)
