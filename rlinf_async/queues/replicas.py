"""Which queue has a key: a channel's queue on one node, or one of several where it is distributed."""

from __future__ import annotations

import threading
from typing import Any

from rlinf_async.errors import RLinfAsyncError
from rlinf_async.queues.reached import Queues
from rlinf_async.queues.remote_queue import RemoteQueue
from rlinf_async.queues.wish import Wish
from rlinf_async.seat.client import NodeClient
from rlinf_async.work import Work


class Replicas:
    """The queues of one channel.  What is asked before it is known where they are waits here, in order.

    Lifecycle: unknown (wishes wait) -> open, or failed (they fail).

    Attributes:
        opening: what makes it known where they are.
    """

    def __init__(self, client: NodeClient) -> None:
        self._client = client
        self.opening: Work[None] | None = None
        self._only: RemoteQueue | None = None
        self._queues: dict[int, RemoteQueue] = {}
        self._pins: dict[bytes, RemoteQueue] = {}
        self._held: dict[bytes, list[Wish[Any]]] = {}
        self._error: BaseException | None = None
        self._number = 0
        self._lock = threading.RLock()

    def open(self, roster: dict[str, Any]) -> None:
        """It is known where they are."""
        known = Queues.of(self._client)
        self._number = roster["number"]
        queues = {
            node: known.queue(node, self._number, roster["name"], roster["max_bytes"], roster["maxsize"])
            for node in roster["nodes"]
        }
        with self._lock:
            self._queues = queues
            if len(queues) > 1:
                for key in self._held:
                    self._pin(key)
                return
            only = next(iter(queues.values()))
            for wishes in self._held.values():
                for wish in wishes:
                    only.start(wish)
            self._held.clear()
            self._only = only  # last: nothing overtakes what was held

    def fail(self, error: BaseException) -> None:
        """It will never be known."""
        with self._lock:
            self._error = error
            held, self._held = self._held, {}
        for wishes in held.values():
            for wish in wishes:
                wish._settle(error=error)

    def start(self, wish: Wish[Any]) -> None:
        """Sends it where its key lives, as soon as that is known."""
        queue = self._only or self._pins.get(wish.key)
        if queue is not None:
            queue.start(wish)
            return
        with self._lock:
            queue = self._only or self._pins.get(wish.key)
            if queue is not None:
                queue.start(wish)
            elif self._error is not None:
                wish._settle(error=self._error)
            elif wish.key in self._held:
                wish.opening = self.opening
                self._held[wish.key].append(wish)
            else:
                wish.opening = self.opening
                self._held[wish.key] = [wish]
                if self._queues:
                    self._pin(wish.key)

    def flush(self) -> None:
        """Sends what has waited for company."""
        for queue in self._queues.values():
            queue.flush()

    def _pin(self, key: bytes) -> None:
        self._client.run(self._resolve(key), what="the node of a key")

    async def _resolve(self, key: bytes) -> None:
        """Asks node 0 which replica has a key: the one on the node of whoever touched it first."""
        here = self._client.node
        nearest = here if here in self._queues else next(iter(self._queues))
        arguments = {"number": self._number, "key": key, "node": nearest}
        try:
            node = await self._client.ask("pin_key", arguments, node=0, what="the node of a key")
        except RLinfAsyncError as error:
            with self._lock:
                wishes = self._held.pop(key, [])
            for wish in wishes:
                wish._settle(error=error)
            return
        queue = self._queues[node]
        with self._lock:
            for wish in self._held.pop(key, ()):
                queue.start(wish)
            self._pins[key] = queue
