"""Emulates data-centre links: delays a worker's outgoing messages by latency, and by bandwidth that node 0 allots.

``here`` is None without emulation, and senders check nothing else. Delayed messages on one link are sent in order, and
do not delay messages on other links. A link without shared bandwidth needs no other node. Shared links serve workers
anywhere in the run, so node 0's daemon keeps their reservations (``launcher/daemon/shared_links.py``). If a link is
free, the time that the request takes counts towards the delay. If it is busy, the delay begins after the request, so
that all messages together never exceed the link's rate.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from rlinf_async._client.client import NodeClient
from rlinf_async._core import clock, operations
from rlinf_async._messaging.state.emulated_delay import Crossing, NetEmulation
from rlinf_async.configuration import worker_key
from rlinf_async.work import Work

_TIMER_SLACK_S: Final = 1e-4


class _Delayed:
    """A delayed message; ``due`` is None until its reservation is known."""

    __slots__ = ("due", "go")

    def __init__(self, go: Callable[[], None], due: float | None) -> None:
        self.go = go
        self.due = due


class EmulatedLinks:
    """The delayed messages of one worker, in order per link. All methods may be called from any thread.

    Args:
        name: name of this worker, such as ``"env:0"``.
    """

    def __init__(self, client: NodeClient, emulation: NetEmulation, name: str) -> None:
        self._client = client
        self._emulation = emulation
        self._name = worker_key(name)
        self._lock = threading.Lock()
        self._kept: dict[Hashable, deque[_Delayed]] = {}
        self._emptied: dict[Hashable, Work[None]] = {}

    def __repr__(self) -> str:
        kept = sum(len(queue) for queue in self._kept.values())
        return f"<EmulatedLinks of {self._name} [{kept} messages under way]>"

    def send(self, link: Hashable, workers: Sequence[str], nbytes: int, go: Callable[[], None]) -> None:
        """Call ``go``, which sends a message, when a message of this size would have arrived.

        Args:
            link: key of a link; messages of one link arrive in the order of the calls.
            workers: names of the receivers.
        """
        crossing = self._emulation.crossing(self._name, tuple(map(worker_key, workers)))
        if crossing is None:
            go()
            return
        now = clock.monotonic()
        delayed = _Delayed(go, None if crossing.links else now + crossing.delay)
        with self._lock:
            self._kept.setdefault(link, deque()).append(delayed)
        if delayed.due is None:
            self._reserve(link, delayed, crossing, nbytes, now)
        else:
            self._client.later(crossing.delay, lambda: self._release(link))

    def emptied(self, link: Hashable) -> Work[None]:
        with self._lock:
            if self._kept.get(link):
                return self._emptied.setdefault(link, Work())
        done: Work[None] = Work()
        done._settle()
        return done

    def _reserve(self, link: Hashable, delayed: _Delayed, crossing: Crossing, nbytes: int, now: float) -> None:
        operation = operations.ReserveLines([[link.name, link.rate] for link in crossing.links], nbytes)
        request = self._client.request(operation, node=0, what="room on an emulated link")

        def reserved() -> None:
            try:
                through = request._result()
            except Exception:  # node 0, which keeps the reservations, is lost
                through = 0.0
            alone = max(nbytes / link.rate for link in crossing.links)
            since = now if through <= alone + _TIMER_SLACK_S else clock.monotonic()
            delayed.due = since + through + crossing.delay
            self._client.later(max(0.0, delayed.due - clock.monotonic()), lambda: self._release(link))

        request._follow(reserved)

    def _release(self, link: Hashable) -> None:
        now = clock.monotonic()
        emptied: Work[Any] | None = None
        while True:
            with self._lock:
                queue = self._kept.get(link)
                if not queue:
                    break
                due = queue[0].due
                if due is None or due > now + _TIMER_SLACK_S:
                    return  # its own timer sends this message and those behind it
                delayed = queue.popleft()
            # No other task removes messages, so they are sent in the order in which they were queued.
            delayed.go()
        with self._lock:
            if not self._kept.get(link):
                self._kept.pop(link, None)
                emptied = self._emptied.pop(link, None)
        if emptied is not None:
            emptied._settle()


here: EmulatedLinks | None = None
"""The emulated links of this worker; None if its network is not emulated."""


def use(links: EmulatedLinks | None) -> None:
    global here
    here = links
