"""``Peer``, record of another worker (endpoint, node, error, links), and ``LinkHealth``, its links' failures."""

from __future__ import annotations

import itertools
from typing import Any, Final

from rlinf_async._core import frames
from rlinf_async._transports.devices.gpu_link_choice import Gpu

_MAX_FAILURES: Final = 3
"""Messages that did not come through, and none that did, after which a peer is sent none that way."""


class LinkHealth:
    """Whether a link is worth another try.

    Attributes:
        is_proven: a message has come through.
    """

    __slots__ = ("_failures", "is_proven")

    def __init__(self) -> None:
        self.is_proven = False
        self._failures = 0

    @property
    def is_good(self) -> bool:
        return self.is_proven or self._failures < _MAX_FAILURES

    def fail(self) -> bool:
        """A message did not come through; whether that was the end of it."""
        self._failures += 1
        return not self.is_proven and self._failures == _MAX_FAILURES


class Peer:
    """Another worker: its endpoint and names, the error that ended it, its GPU, the links to it.

    Attributes:
        endpoint: its id in the run.
        group, rank, label: how people call it.
        error: why it sends nothing more; None as long as it lives.
        returns: it has died, and is started again under its rank, with another endpoint.
        is_supervised: it is known that it would be.
        connection, gpu_link: how messages by a connection of its own, and from GPU to GPU, have come through.
        gpu: the one that it works on, as far as it has said; ``reachable``, the uuids of others that it can open.
        knows_gpu: it has been told of this worker's.
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
        """It has been told who this worker is."""
        self.transfers = itertools.count(1)
        """Numbers for the links."""
        self.links: dict[str, Any] = {}

    def __str__(self) -> str:
        return self.label

    def __repr__(self) -> str:
        return f"<Peer {self.label} [{'gone' if self.error else 'alive'}]>"
