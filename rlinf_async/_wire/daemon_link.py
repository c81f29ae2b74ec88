"""``PeerLink`` between two daemons over two streams (control, bulk): sends, delivers, ends in order or broken.

It has two streams of messages in both directions: *control*, a stream of bytes where whatever is queued when the
stream is free leaves as one message, and *bulk*, in pieces, so that a large value never stands in the way of a call.
Payloads are opaque in both.  Order holds within a stream, not across the two.

An empty message is a stream's goodbye.  The end of a stream without one means that the peer broke off.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from rlinf_async.errors import ClosedError, NodeLost

MAX_MESSAGE_BYTES = 1 << 20
"""Bytes that one bulk piece may hold; gRPC slows down beyond it."""
CLOSED = "its daemon ended in order: it was stopped, or has lost its launcher"
"""The reason of a link that the other side has closed."""
CLOSE_TIMEOUT_S = 2.0
"""For the peer to answer a goodbye."""

_BATCH_BYTES = 256 << 10  # bytes; the throughput of larger messages is no better, and calls wait behind them
_MAX_QUEUED_PIECES = 4  # pieces: enough to keep the stream busy
_GOODBYE = b""


class Broken(Exception):
    """A stream ended without a goodbye; the text says why."""


class Stream(Protocol):
    """One end of a stream of messages.  What it raises is `Broken`, where it ended without a goodbye."""

    async def read(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...


_Argument = TypeVar("_Argument")


class _Callback(Generic[_Argument]):
    """An attribute of a link that its owner sets; once all three are set, the link delivers."""

    def __set_name__(self, owner: type[PeerLink], name: str) -> None:
        self._name = name

    def __get__(self, link: PeerLink, owner: type[PeerLink]) -> Callable[[_Argument], None] | None:
        return link._callbacks.get(self._name)

    def __set__(self, link: PeerLink, callback: Callable[[_Argument], None] | None) -> None:
        if callback is None:
            raise TypeError(f"{self._name} of a link cannot be taken away: close the link")
        link._callbacks[self._name] = callback
        if len(link._callbacks) == 3 and not link._listening.is_set():
            link._listening.set()
            asyncio.get_running_loop().call_soon(link._notify_end)


class PeerLink:
    """A connection to another node's daemon; the same on both ends.  Made by `dial` and `PeerServer`.

    The owner sets three callbacks.  They are called on the loop, one at a time, and must not block; nothing is
    delivered, and nothing is lost, until all three are set.  An exception out of one of them ends the link.

    Attributes:
        peer: the other node's rank.
        on_control: called with the bytes that `send` was given on the other side, in their order, many at once.  Only
            what is larger than 256 KiB arrives in parts.
        on_bulk: called with each bulk piece.
        on_lost: called once, after the last message, with the reason, when the link ends by anything but this
            side's own `close`; the reason is `CLOSED` where the peer closed in order.
    """

    on_control = _Callback[bytes]()
    on_bulk = _Callback[bytes]()
    on_lost = _Callback[str]()

    def __init__(self, peer: int, control: Stream, bulk: Stream, hang_up: Callable[[bool], Awaitable[None]]) -> None:
        self.peer = peer
        self._callbacks: dict[str, Callable[[Any], None]] = {}
        self._listening = asyncio.Event()
        self._control: deque[bytes] = deque()
        self._control_wake = asyncio.Event()
        self._bulk: deque[bytes] = deque()
        self._bulk_wake = asyncio.Event()
        self._bulk_room = asyncio.Semaphore(_MAX_QUEUED_PIECES)
        self._open_readers = 2
        self._closing = False  # by this side
        self._ending = False  # by either side: what is queued still leaves, nothing more is accepted
        self._has_ended = False  # nothing comes or goes any more
        self._has_told_end = False
        self._reason = ""
        self._task = asyncio.create_task(self._run(control, bulk, hang_up), name=f"link to node {peer}")

    def send(self, data: bytes) -> None:
        """Queues bytes for the other side's `on_control`; dropped where the link is closed or lost.

        The queue has no bound: what is large, or endless, goes through `send_bulk`.
        """
        if self._ending or not data:
            return
        if len(data) <= _BATCH_BYTES:
            self._control.append(data)
        else:
            self._control.extend(data[start : start + _BATCH_BYTES] for start in range(0, len(data), _BATCH_BYTES))
        self._control_wake.set()

    async def send_bulk(self, piece: bytes) -> None:
        """Queues a bulk piece of 1 to `MAX_MESSAGE_BYTES` bytes, best 256 KiB; waits while a few are queued already.

        Pieces leave in the order of the calls.  A cancelled call has queued nothing.

        Raises:
            ValueError: the piece is empty or too large.
            ClosedError: this side has closed the link.
            NodeLost: the link has ended.
        """
        if not 0 < len(piece) <= MAX_MESSAGE_BYTES:
            raise ValueError(f"a bulk piece holds 1 to {MAX_MESSAGE_BYTES} bytes, got {len(piece)}")
        await self._bulk_room.acquire()
        if self._ending:
            self._bulk_room.release()  # wakes the next of those that wait
            if self._closing:
                raise ClosedError(f"the link to node {self.peer} is closed")
            reason = self._reason or CLOSED
            error = NodeLost(f"the link to node {self.peer} is lost: {reason}")
            error.node_rank, error.reason = self.peer, reason
            raise error
        self._bulk.append(piece)
        self._bulk_wake.set()

    async def close(self) -> None:
        """Sends what is queued, says goodbye and waits for the peer's, two seconds at most.  Idempotent.

        What arrives meanwhile is dropped, and `on_lost` is not called any more.
        """
        self._closing = True
        self._end()
        self._listening.set()
        try:
            await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT_S)
        finally:
            if not self._task.done():
                self._reason = "the other side closed without waiting for a goodbye any longer"
                self._task.cancel()
                await asyncio.wait([self._task])

    async def ended(self) -> str:
        """Waits for the end of the link; returns the reason, empty where it ended in order.

        Goes on waiting when it is cancelled, and passes that on afterwards: where gRPC cancels a handler, that *is* the
        end, and the link tells.
        """
        cancelled = False
        while not self._task.done():
            try:
                await asyncio.wait([self._task])
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        return self._reason

    async def _run(self, control: Stream, bulk: Stream, hang_up: Callable[[bool], Awaitable[None]]) -> None:
        in_order = False
        try:
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._write_control(control))
                    tasks.create_task(self._write_bulk(bulk))
                    tasks.create_task(self._read(control, "on_control"))
                    tasks.create_task(self._read(bulk, "on_bulk"))
                in_order = True
            except* Broken as broken:
                self._reason = str(broken.exceptions[0])
            self._has_ended = True
            self._notify_end()
        finally:
            self._end()
            await hang_up(in_order)

    def _notify_end(self) -> None:
        if self._has_ended and self._listening.is_set() and not (self._closing or self._has_told_end):
            self._has_told_end = True
            try:
                self._deliver("on_lost", self._reason or CLOSED)
            except Broken:
                pass  # on_lost itself failed: that was reported, and there is nothing left to end

    async def _write_control(self, stream: Stream) -> None:
        queue = self._control
        while await self._wait_for_data(queue, self._control_wake):
            size = len(queue[0])
            batch = [queue.popleft()]
            while queue and size + len(queue[0]) <= _BATCH_BYTES:
                size += len(queue[0])
                batch.append(queue.popleft())
            await stream.write(b"".join(batch) if len(batch) > 1 else batch[0])
        await stream.write(_GOODBYE)

    async def _write_bulk(self, stream: Stream) -> None:
        while await self._wait_for_data(self._bulk, self._bulk_wake):
            await stream.write(self._bulk.popleft())
            self._bulk_room.release()
        await stream.write(_GOODBYE)

    async def _wait_for_data(self, queue: deque[bytes], wake: asyncio.Event) -> bool:
        """Waits until there is something to write; False when there is not and will not be."""
        while not queue and not self._ending:
            wake.clear()
            await wake.wait()
        return bool(queue)

    async def _read(self, stream: Stream, callback: str) -> None:
        while (data := await stream.read()) != _GOODBYE:
            # The other side sends as soon as its own callbacks are set; those of this side may not be.  Nothing more is
            # read until they are: gRPC's flow control holds the rest back at its sender.
            # tests/_wire/test_daemon_link.py::test_nothing_that_arrives_before_the_owner_listens_is_lost
            await self._listening.wait()
            if not self._closing:
                self._deliver(callback, data)
        self._open_readers -= 1
        if not self._open_readers:
            self._end()

    def _deliver(self, callback: str, argument: bytes | str) -> None:
        try:
            self._callbacks[callback](argument)
        except Exception as error:
            report_failure(f"{callback} of the link to node {self.peer} failed", error)
            raise Broken(f"{callback} failed: {error!r}") from None

    def _end(self) -> None:
        self._ending = True
        self._control_wake.set()
        self._bulk_wake.set()
        self._bulk_room.release()


def report_failure(message: str, error: Exception) -> None:
    """Gives a callback's exception, which has no waiter, to the loop's exception handler."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
