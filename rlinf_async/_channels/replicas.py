"""Routes requests to queues: ``Queues`` of a client, by node and channel; ``Replicas`` of a channel, by key."""

from __future__ import annotations

import functools
import threading
from typing import Any

from rlinf_async._channels.queue_errors import QueueEnd
from rlinf_async._channels.remote_queue import RemoteQueue
from rlinf_async._channels.request import QueueRequest
from rlinf_async._client.client import NodeClient
from rlinf_async._core import frames, operations
from rlinf_async._core.error_copy import copy_of
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.segment import close_fds
from rlinf_async.errors import ClosedError
from rlinf_async.work import Work

logger = own_logger(__name__)

_lock = threading.Lock()


class Queues:
    """The remote queues of one client, by daemon and channel.

    Example:
        queue = Queues.of(client).queue(node=0, channel=number, name="obs")
    """

    def __init__(self, client: NodeClient) -> None:
        self._client = client
        self._queues: dict[tuple[int, int], RemoteQueue] = {}
        self._lock = threading.Lock()
        client.receivers[frames.GIVE] = client.receivers[frames.QUEUE] = self
        client.events.on("node_lost", self._on_node_lost)
        client.events.on("closed", self._on_closed)

    def __repr__(self) -> str:
        return f"<Queues [{len(self._queues)} used by {self._client!r}]>"

    @classmethod
    def of(cls, client: NodeClient) -> Queues:
        with _lock:
            known = client.receivers.get(frames.GIVE)
            return known if isinstance(known, Queues) else cls(client)

    def queue(
        self, node: int, channel: int, name: str, max_bytes: int = 0, maxsize: int = 0, noun: str = "channel"
    ) -> RemoteQueue:
        place = (frames.endpoint(node, 0), channel)
        with self._lock:
            queue = self._queues.get(place)
            if queue is None:
                queue = self._queues[place] = RemoteQueue(self._client, node, channel, name, max_bytes, maxsize, noun)
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


class Replicas:
    """The queues of one channel. Requests wait, in order, until the queues are known.

    The proxy of a queue is created on first use, because a daemon reports a queue's end only to its users.

    Lifecycle: unknown (requests wait) -> open, or ended (requests are refused).

    Attributes:
        opening: settled once the queues are known.
    """

    def __init__(self, client: NodeClient) -> None:
        self._client = client
        self.opening: Work[None] | None = None
        self._only: RemoteQueue | None = None
        self._roster: dict[str, Any] = {}
        self._pins: dict[bytes, RemoteQueue] = {}
        self._pinning: dict[bytes, Work[None]] = {}
        self._queues: dict[int, RemoteQueue] = {}
        self._waiting: dict[bytes, list[QueueRequest[Any]]] = {}
        self._end: QueueEnd | None = None
        self._lock = threading.RLock()

    def open(self, roster: dict[str, Any]) -> None:
        with self._lock:
            self._roster = roster
            for key in list(self._waiting):
                self._find(key)

    def end(self, end: QueueEnd) -> None:
        with self._lock:
            self._end = end
            waiting, self._waiting = self._waiting, {}
        for requests in waiting.values():
            for request in requests:
                request.refuse(end)

    def check(self) -> None:
        if self._end is not None:
            raise copy_of(self._end.put)

    def start(self, request: QueueRequest[Any]) -> None:
        """Send a request to its key's queue, as soon as that queue is known."""
        # A known queue never changes, so no lock is needed here; an unknown queue is looked up again under the lock.
        queue = self._only or self._pins.get(request.key)
        if queue is not None:
            queue.start(request)
            return
        request._loop = self._client.user_loop  # used until the request has a destination
        with self._lock:
            queue = self._only or self._pins.get(request.key)
            if queue is not None:
                queue.start(request)
            elif self._end is not None:
                request.refuse(self._end)
            elif request.key in self._waiting:
                request.opening = self.opening
                self._waiting[request.key].append(request)
            else:
                request.opening = self.opening
                self._waiting[request.key] = [request]
                if self._roster:
                    self._find(request.key)

    def flush(self) -> None:
        for queue in list(self._queues.values()):
            queue.flush()

    async def pinned(self) -> None:
        for pinned in list(self._pinning.values()):
            await pinned.async_wait()

    def _find(self, key: bytes) -> None:
        """Send a key's waiting requests; if there are several nodes, first ask node 0 for the key's node."""
        nodes = self._roster["nodes"]
        if len(nodes) > 1:
            own_node = self._client.node
            operation = operations.PinKey(self._roster["number"], key, own_node if own_node in nodes else nodes[0])
            self._pinning[key] = Work()
            answer = self._client.request(operation, node=0, what="the node of a key")
            answer._follow(functools.partial(self._pin, key, answer))
            return
        only = self._queue(nodes[0])
        self._send_held(key, only)
        if not self._waiting:
            # Set the shortcut last, because no request may overtake the waiting requests.
            self._only = only

    def _pin(self, key: bytes, answer: Work[int | None]) -> None:
        """Use the node that node 0 chose for a key: the node of the process that first used the key."""
        with self._lock:
            end = QueueEnd.of_closed(self._roster["name"])
            try:
                node = answer._result()
            except Exception as error:
                node, end = None, QueueEnd.of_lost(error)
            if node is not None:
                queue = self._queue(node)
                self._send_held(key, queue)
                # Set the pin last, because no request may overtake the waiting requests.
                self._pins[key] = queue
            self._pinning.pop(key)._settle()
            for request in self._waiting.pop(key, ()):
                request.refuse(end)

    def _send_held(self, key: bytes, queue: RemoteQueue) -> None:
        waiting = self._waiting[key]
        while waiting:  # a request that completes immediately may start another, which queues last
            queue.start(waiting.pop(0))
        del self._waiting[key]

    def _queue(self, node: int) -> RemoteQueue:
        queue = self._queues.get(node)
        if queue is None:
            roster = self._roster
            noun = "experience" if "experience" in roster else "channel"
            queue = self._queues[node] = Queues.of(self._client).queue(
                node, roster["number"], roster["name"], roster["max_bytes"], roster["maxsize"], noun
            )
        return queue
