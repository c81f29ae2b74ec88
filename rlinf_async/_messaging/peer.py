"""``Peer``: the record of another worker (endpoint, node, error, links). ``LinkHealth``: failures of a link to it."""

from __future__ import annotations

import itertools
from typing import Any, Final

from rlinf_async._core import frames
from rlinf_async._transports.devices.gpu_link_choice import Gpu

_MAX_FAILURES: Final = 3
"""Number of failures, with no success so far, after which a link to a peer is abandoned."""


class LinkHealth:
    """The record of a link's failures and successes. The link is proven once a message has got through."""

    __slots__ = ("_failures", "is_proven")

    def __init__(self) -> None:
        self.is_proven = False
        self._failures = 0

    @property
    def is_good(self) -> bool:
        return self.is_proven or self._failures < _MAX_FAILURES

    def fail(self) -> bool:
        """Count a failure. Return True if the link is now unusable."""
        self._failures += 1
        return not self.is_proven and self._failures == _MAX_FAILURES


class Peer:
    """Another worker: its endpoint and names, the error that ended it, its GPU, and the links to it.

    Attributes:
        error: the error that ended it; None while it is alive.
        returns: True if it has died and its rank is being restarted under another endpoint.
        is_supervised: True if its rank is known to be restarted after it dies.
        connection, gpu_link: health of the direct connection and of the GPU link.
        gpu: its announced GPU, if any.
        reachable: UUIDs of other GPUs whose memory it can open.
        knows_gpu: True if this worker's GPU has been announced to it.
    """

    def __init__(self, endpoint: int) -> None:
        self.endpoint = endpoint
        self.node = frames.node_of(endpoint)
        self.group, self.rank = "", 0
        self.label = f"worker {frames.number_of(endpoint)} on node {self.node}"
        self.route = frames.route_to([endpoint])
        self.error: Exception | None = None
        self.returns = False
        self.is_supervised = False
        self.connection, self.gpu_link = LinkHealth(), LinkHealth()
        self.gpu: Gpu | None = None
        self.reachable: frozenset[str] = frozenset()
        self.knows_gpu = False
        self.is_watched = False
        self.is_met = False
        self.transfers = itertools.count(1)
        self.links: dict[str, Any] = {}

    def __str__(self) -> str:
        return self.label

    def __repr__(self) -> str:
        return f"<Peer {self.label} [{'gone' if self.error else 'alive'}]>"
