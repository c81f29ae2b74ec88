"""Per-client registry of ``RemoteQueue``s by node and channel: dispatches GIVE and QUEUE frames and node loss."""

from __future__ import annotations

import threading
from typing import Any

from rlinf_async._channels.remote_queue import RemoteQueue
from rlinf_async._channels.takings import Takings
from rlinf_async._client.client import NodeClient
from rlinf_async._core import frames
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.segment import close_fds
from rlinf_async.errors import ClosedError

logger = own_logger(__name__)


class Queues:
    """The remote queues of one client, by daemon and channel.

    Example:
        queue = Queues.of(client).queue(node=0, channel=number, name="obs")
    """

    def __init__(self, client: NodeClient) -> None:
        self._client = client
        self._takings = Takings(client)
        self._queues: dict[tuple[int, int], RemoteQueue] = {}
        self._lock = threading.Lock()
        client.receivers[frames.GIVE] = client.receivers[frames.QUEUE] = self
        client.events.on("node_lost", self._on_node_lost)
        client.events.on("closed", self._on_closed)

    def __repr__(self) -> str:
        return f"<Queues [{len(self._queues)} used by {self._client!r}]>"

    @classmethod
    def of(cls, client: NodeClient) -> Queues:
        """The client's own."""
        with _lock:
            known = client.receivers.get(frames.GIVE)
            return known if isinstance(known, Queues) else cls(client)

    def queue(self, node: int, channel: int, name: str, max_bytes: int = 0, maxsize: int = 0) -> RemoteQueue:
        """One object per channel and node, however often it is asked for."""
        place = (frames.endpoint(node, 0), channel)
        with self._lock:
            queue = self._queues.get(place)
            if queue is None:
                queue = self._queues[place] = RemoteQueue(
                    self._client, self._takings, node, channel, name, max_bytes, maxsize
                )
        over = self._client.closed or self._client.lost_nodes.get(node)
        if over is not None:
            queue.fail(over)
        return queue

    def on_frame(self, frame: list[Any], fds: list[int]) -> None:
        place = (frame[2], frame[4])
        queue = self._queues.get(place)
        if queue is None:
            if frame[0] == frames.QUEUE and frame[5] == "lost":
                logger.error("%d items that were put into a channel after it was closed are lost", frame[6])
            close_fds(fds)
        elif frame[0] == frames.GIVE:
            queue.on_give(frame, fds)
        elif frame[5] == "gone":
            del self._queues[place]
            queue.end(frame[6])
        else:
            queue.on_queue_frame(frame[5], frame[6])

    # -- ends ---------------------------------------------------------------------------------------------------

    def _on_node_lost(self, facts: dict[str, Any]) -> None:
        error = self._client.lost_nodes[facts["node"]]
        for queue in list(self._queues.values()):
            if queue.node == facts["node"]:
                queue.fail(error)

    def _on_closed(self, facts: dict[str, Any]) -> None:
        for queue in list(self._queues.values()):
            queue.fail(self._client.closed or ClosedError(facts["reason"]))


_lock = threading.Lock()
