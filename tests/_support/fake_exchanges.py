"""Exchanges of several workers in one process, and the network between them, frame by frame."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rlinf_async._core import frames
from rlinf_async._core.operations import CancelFind, Find, Operation
from rlinf_async._core.pool import pool
from rlinf_async._core.segment import close_fds
from rlinf_async._messaging.exchange import Exchange
from rlinf_async._transports.link import Link, Post
from rlinf_async.address import WorkerAddress, WorkerInfo
from rlinf_async.work import Work


class Client:
    """What an exchange needs of its client."""

    def __init__(self, network: Network, endpoint: int) -> None:
        self.endpoint = endpoint
        self.network = network
        self.receivers: dict[int, Any] = {}
        self.listeners: dict[str, list[Callable[[Any], None]]] = {}
        self.lost_nodes: dict[int, Exception] = {}
        self.requests: list[tuple[Operation[Any], int]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.loop = self

    def listen(self, what: str, listener: Callable[[Any], None]) -> None:
        self.listeners.setdefault(what, []).append(listener)

    def announce(self, what: str, facts: Any) -> None:
        for listener in self.listeners.get(what, []):
            listener(facts)

    def direct_connection(self, endpoint: int) -> None:
        """It has none."""

    def drain_direct(self, endpoint: int) -> None:
        pass

    def call_soon_threadsafe(self, callback: Callable[..., None], *args: Any) -> None:
        self.network.callbacks.append((callback, args))

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.timers.append((seconds, callback))

    def send(self, frame: Any, fds: Sequence[int] = ()) -> None:
        self.network.frames.append((list(frame), list(fds)))

    def request(self, operation: Operation[Any], *, node: int = -1, what: str = "") -> Any:
        self.requests.append((operation, node))
        work: Any = Work()
        work.number = len(self.requests)
        self.network.answer(work, operation)
        return work


class Network:
    """Daemons that know groups ``a`` (on node 0) and ``b`` (on node 1 if ``far``), of one rank each, and a directory.

    Attributes:
        frames: what has been sent and is not delivered.
        names: groups that the directory knows; lookups of others wait in ``lookups``.
        supervised: groups whose ranks are started again.
        is_frozen: nobody is told which names there are.
    """

    def __init__(self, *, far: bool = True) -> None:
        self.frames: deque[tuple[list[Any], list[int]]] = deque()
        self.callbacks: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.lookups: dict[str, list[Any]] = {}
        self.seen: list[list[Any]] = []
        self.endpoints = {"a": frames.endpoint(0, 5), "b": frames.endpoint(int(far), 6)}
        self.names = {"a", "b"}
        self.supervised: set[str] = set()
        self.is_frozen = False
        self.clients = {endpoint: Client(self, endpoint) for endpoint in self.endpoints.values()}
        self.a, self.b = (self._exchange(group) for group in "ab")

    def _exchange(self, group: str) -> Exchange:
        address = WorkerAddress(group, 0)
        endpoint = self.endpoints[group]
        info = WorkerInfo(address, 0, 1, frames.node_of(endpoint), "NO_ACCEL", "", -1, "127.0.0.1", 0, node_name="n")
        client: Any = self.clients[endpoint]
        return Exchange(client, info, group)

    def client(self, group: str) -> Client:
        return self.clients[self.endpoints[group]]

    def answer(self, work: Any, operation: Operation[Any]) -> None:
        if isinstance(operation, Find) and operation.name not in self.names:
            self.lookups.setdefault(operation.name, []).append(work)
        elif isinstance(operation, Find):
            work._settle(self.roster(operation.name))
        elif isinstance(operation, CancelFind):
            if not self.is_frozen:
                work._settle(sorted(self.names))
        else:
            work._settle(True)

    def roster(self, group: str) -> list[dict[str, Any]]:
        entry = {"endpoint": self.endpoints[group], "pid": 100, "info": {"node_name": "n"}}
        return [entry | {"supervised": group in self.supervised}]

    def publish(self, group: str) -> None:
        self.names.add(group)
        for work in self.lookups.pop(group, []):
            work._settle(self.roster(group))

    def deliver(self, most: int = 1_000_000, change: Callable[[list[Any]], None] | None = None) -> None:
        """Delivers frames, and what follows from them; ``change`` may tamper with each."""
        for _ in range(most):
            if self.callbacks:
                callback, args = self.callbacks.popleft()
                callback(*args)
            elif self.frames:
                self._deliver(*self.frames.popleft(), change)
            else:
                return

    def _deliver(self, frame: list[Any], fds: list[int], change: Callable[[list[Any]], None] | None) -> None:
        frame = frames.unpack(frames.pack(frame))
        self.seen.append(frame)
        if change is not None:
            change(frame)
        targets = [frames.endpoint(node, number) for node, pairs in frame[3] for number in pairs[::2]]
        copies = [[os.dup(fd) for fd in fds] for _ in targets]
        close_fds(fds)
        for target, copy in zip(targets, copies, strict=True):
            if isinstance(frame[5], str):
                close_fds(copy)
                copy.clear()
            self.clients[target].receivers[frames.MESSAGE].on_frame(frame, copy)

    def words(self) -> list[int]:
        """The kinds of all that has been delivered."""
        return [frame[4][0] for frame in self.seen]

    def close(self) -> None:
        for _, fds in self.frames:
            close_fds(fds)
        pool.close()


class FakeLink(Link):
    """Delivers when it is told to; its transfers are at hand for the test."""

    made: list[Any] = []  # noqa: RUF012

    def __init__(self, post: Post, first: bool, address: str) -> None:
        self.sent: dict[int, tuple[Work[None], list[bytes]]] = {}
        self.received: dict[int, Work[list[memoryview]]] = {}
        self.discarded: list[Exception] = []
        self.made.append(self)

    def send(self, transfer: int, buffers: Sequence[memoryview]) -> Work[None]:
        work: Work[None] = Work()
        self.sent[transfer] = work, [bytes(buffer) for buffer in buffers]
        return work

    def receive(self, transfer: int, sizes: Sequence[int]) -> Work[list[memoryview]]:
        work: Work[list[memoryview]] = Work()
        self.received[transfer] = work
        return work

    def on_control(self, facts: Any) -> None:
        pass

    def discard(self, error: Exception, transfer: int | None = None) -> None:
        works = [work for number, (work, _) in self.sent.items() if transfer in (None, number)]
        works += [] if transfer else self.received.values()
        if sum(work._settle(error=error) for work in works):
            self.discarded.append(error)


async def cancelled(work: Work[Any]) -> None:
    """Waits for it, and is cancelled."""

    async def wait() -> None:
        await work

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class FakeDeviceLink(FakeLink):
    """Its transfers are tensors."""

    made: list[Any] = []  # noqa: RUF012

    def __init__(self, name: str) -> None:
        super().__init__(None, False, "")  # type: ignore[arg-type]
        self.name = name

    def send(self, transfer: int, buffers: Sequence[Any]) -> Work[None]:
        work: Work[None] = Work()
        self.sent[transfer] = work, list(buffers)
        return work
