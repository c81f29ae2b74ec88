"""Processes and a daemon with a channel, whose wires a test holds in its hand."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlinf_async._channels.reading import ChannelItems
from rlinf_async._channels.remote_queue import RemoteQueue
from rlinf_async._channels.request import Confirmation, Get, Put, QueueQuery
from rlinf_async._core import codec, frames, operations
from rlinf_async._core.giving_back import GivingBack
from rlinf_async._core.segment import close_fds
from rlinf_async._core.taken_page import TakenPage, Takings
from rlinf_async.errors import ClosedError
from rlinf_launcher.daemon.channels import Channels
from rlinf_launcher.daemon.endpoint import Endpoint
from rlinf_launcher.daemon.handlers import Requester
from rlinf_launcher.daemon.router import Router

NUMBER = 5
"""Of the one channel."""

K, L = b"k", b"l"


class _Drained:
    """A future whose waiter looks again in the next turn."""

    def __init__(self) -> None:
        self._is_set = False

    def done(self) -> bool:
        return self._is_set

    def set_result(self, value: None) -> None:
        self._is_set = True

    def __await__(self) -> Iterator[None]:
        while not self._is_set:
            yield


class Loop:
    """Remembers what is to be called."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()
        self.timers: list[Callable[[], None]] = []

    def create_future(self) -> Any:
        return _Drained()

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        self.soon.append(lambda: callback(*args))

    call_soon_threadsafe = call_soon

    def call_later(self, seconds: float, callback: Callable[..., None], *args: Any) -> None:
        self.timers.append(lambda: callback(*args))

    def turn(self) -> None:
        for _ in range(len(self.soon)):
            self.soon.popleft()()

    def time_passes(self) -> None:
        timers, self.timers = self.timers, []
        for call in timers:
            call()


class Process:
    """One that uses the channel; what it says and is told stays on the wire until it is moved."""

    def __init__(self, daemon: Daemon) -> None:
        self.endpoint_record: Endpoint = daemon.router.new_endpoint("worker")
        self.endpoint_record.connection = self  # type: ignore[assignment]
        self.queued_bytes = 0
        self.down: deque[Any] = deque()
        self.up: deque[Any] = deque()
        self.loop = Loop()
        self.closed: Exception | None = None
        self.takings = Takings(self.later)
        self.takings.page, page = TakenPage.make()
        close_fds(page)
        self.giving_back = GivingBack()
        self.unsent: dict[Any, None] = {}
        self.queue = RemoteQueue(self, 0, NUMBER, "obs", 0)  # type: ignore[arg-type]
        self.queue._batching.gathers = self._gathers  # type: ignore[method-assign]
        self.in_a_coroutine = True
        self.is_stopped = False
        self.said = 0
        self.gets: list[Get[Any]] = []
        self._daemon = daemon
        daemon.processes.append(self)

    @property
    def is_busy(self) -> bool:
        return bool(self.up or self.down or self.loop.soon or self.loop.timers)

    @property
    def endpoint(self) -> int:
        return self.endpoint_record.id

    node = 0
    # as a client

    def send(self, frame: Any, fds: Any = (), *, on_sent: Callable[[], None] | None = None, **_: Any) -> None:
        if frame[2] == self.endpoint:
            self.up.append(list(frame))
            if on_sent is not None:
                on_sent()
        else:
            self.down.append(list(frame))

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.loop.call_later(seconds, callback)

    def read_available(self) -> None:
        self.says()

    def _gathers(self) -> bool:
        if self.in_a_coroutine and not self.loop.soon:
            self.loop.call_soon(self.queue.flush)
        return self.in_a_coroutine

    # the wires

    def says(self, count: int = 1 << 30) -> None:
        while self.up and count:
            count -= 1
            self._daemon.router.from_endpoint(self.endpoint_record, self.up.popleft(), [])

    def receive(self, count: int = 1 << 30) -> None:
        while self.down and count:
            count -= 1
            frame = self.down.popleft()
            if frame[0] == frames.GIVE:
                self.queue.on_give(frame, [])
            elif frame[5] == "gone":
                self.queue.end(frame[6])
            else:
                self.queue.on_queue_frame(frame[5], frame[6])

    # its callers

    def put(self, value: Any, key: bytes = K) -> Put:
        encoded = codec.encode(value)
        request = Put("obs", key, key, 0, encoded, encoded.nbytes, frames.WAIT, None)
        self.queue.start(request)
        return request

    def get(self, key: bytes = K, target: int | list[int] | None = None) -> Get[Any]:
        request: Get[Any] = Get("get() from", "obs", key, key, target, None)
        self.queue.start(request)
        return request

    def read(self, key: bytes = K) -> ChannelItems:
        """A loop."""

        def ask(reader: ChannelItems) -> Get[None]:
            request: Get[None] = Get("get() from", "obs", key, key, [3, frames.READ_SHARED], None, weakref.ref(reader))
            self.queue.start(request)
            return request

        return ChannelItems(ask, "obs")

    def confirm(self, lease: Get[Any], count: int) -> Confirmation:
        request = Confirmation(lease, count)
        self.queue.start(request)
        return request

    def ask(self, word: str = "size", key: bytes = K) -> QueueQuery:
        request = QueueQuery("qsize() of", "obs", key, key, word, lambda found: found)
        self.queue.start(request)
        return request


class Daemon:
    def __init__(self) -> None:
        self.gone: set[int] = set()
        self.processes: list[Process] = []
        self.loop = Loop()
        self.router = Router(self.loop, 0, lambda *_: None)  # type: ignore[arg-type]
        self.channels = Channels(self.loop, self.router, self.gone, budget=1 << 30)  # type: ignore[arg-type]
        hosting = self.channels.host_channel(Requester(0, 1), operations.HostChannel(NUMBER, "obs", 0, 0))
        with pytest.raises(StopIteration):
            hosting.send(None)
        self.queue = self.channels._hosted[NUMBER].queue

    def kill(self, process: Process) -> None:
        """It has said what is on its wire; its page says what it has taken."""
        process.says()
        process.closed = ClosedError("dead")
        assert process.takings.page is not None
        for (place, channel), taken in process.takings.page.read().items():
            self.router.to_queue([frames.QUEUE, 0, process.endpoint, place, channel, "taken", taken], [])
        self.gone.add(process.endpoint)
        self.channels.drop_client(process.endpoint)

    def close(self, *, discard: bool = False) -> None:
        closing = self.channels.close_channel(Requester(0, 1), operations.CloseChannel(NUMBER, discard))

        def go_on() -> None:
            try:
                closing.send(None)
            except StopIteration:
                return
            self.loop.call_soon(go_on)  # what producers have said is read first

        go_on()


def settle(daemon: Daemon) -> None:
    """Everything that is on the wires arrives."""
    processes = [each for each in daemon.processes if each.endpoint not in daemon.gone and not each.is_stopped]
    while any(process.is_busy for process in processes) or daemon.loop.soon:
        for process in processes:
            process.loop.turn()
            process.loop.time_passes()
            process.says()
        daemon.loop.turn()
        for process in processes:
            process.receive()


def had(daemon: Daemon, process: Process, key: bytes = K) -> Any:
    """One item, all by itself."""
    get = process.get(key)
    settle(daemon)
    return get.wait(0)
