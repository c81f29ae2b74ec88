"""``NodeLink``: sends frames to another node's daemon over gRPC, in order per source, with bodies on a bulk stream."""

from __future__ import annotations

import asyncio
import os
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from rlinf_async import settings
from rlinf_async._core import frames
from rlinf_async._core.descriptors import limit_met
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.pool import Pool, PooledSegment
from rlinf_async._core.segment import close_fds
from rlinf_async.errors import ClosedError, NodeLost

from .frame_holdback import Holdback

logger = own_logger(__name__)

_WITH_BODY: Final = frozenset({frames.CALL, frames.REPLY, frames.MESSAGE, frames.PUT, frames.GIVE})
_OF_A_DAEMON: Final = frozenset({frames.GIVE, frames.QUEUE})
_HEADER: Final = struct.Struct("<QQQ")
"""Header of a piece: the transfer's number, the size of the whole body, and the piece's offset."""


class NodeTransport(Protocol):
    """Interface of the gRPC link that ``NodeLink`` uses (``rlinf_async._wire.daemon_link.PeerLink``)."""

    @property
    def peer_has_ended(self) -> bool: ...

    @property
    def seconds_down(self) -> float: ...

    on_control: Callable[[bytes], None] | None
    on_bulk: Callable[[bytes], None] | None
    on_lost: Callable[[str], None] | None
    lease: float

    def send(self, data: bytes) -> None: ...

    async def send_bulk(self, piece: bytes) -> None: ...

    async def close(self) -> None: ...


OnFrame = Callable[["NodeLink", list[Any], list[int]], None]


class NodeLink:
    """Link that carries frames between this node and another node, in order per source.

    A frame whose body is a descriptor is sent at once; the body follows in pieces on the bulk stream.  The receiver
    holds back the frame, and later frames from the same source, until the body is complete.

    Args:
        pool: reusable memory for received bodies, because first writes to fresh memory cost more than encryption.

    Attributes:
        over: reason why the link ended; later frames are dropped.
        lost: reason why ``Membership`` declared the node lost.
        calls_sent: number of CALL frames sent to this node; a group call counts once for all its ranks there.
    """

    def __init__(
        self,
        node: int,
        name: str,
        link: NodeTransport,
        on_frame: OnFrame,
        on_lost: Callable[[NodeLink, str], None],
        pool: Pool,
    ) -> None:
        self.node = node
        self.name = name
        self.over: str | None = None
        self.lost: str | None = None
        self.calls_sent = 0
        self._link = link
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._pool = pool
        self._packer = frames.new_packer()
        self._reader = frames.FrameReader()
        self._holdback = Holdback()
        self._transfers = 0
        self._outgoing: deque[tuple[int, int, int]] = deque()
        self._bulk_ready = asyncio.Event()
        self._incoming: dict[int, tuple[PooledSegment | str, int, int]] = {}
        """Maps each transfer to its partial body: memory (or why there is none), total bytes, received bytes."""
        self._complete: dict[int, int | str] = {}

    def __repr__(self) -> str:
        return f"<NodeLink {self.node} {self.name} {self.over or 'connected'} [{len(self._outgoing)} bodies to send]>"

    def open(self) -> None:
        """Start receiving, and deliver frames that have already arrived."""
        self._link.on_lost = self._gone
        self._link.on_control = self._control
        self._link.on_bulk = self._bulk

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, frame: frames.Frame, fds: Sequence[int] = ()) -> None:
        """Send a frame; takes ownership of the descriptors."""
        if self.over is not None:
            close_fds(fds)
            return
        if frame[0] == frames.CALL:
            self.calls_sent += 1
        if fds:
            self._transfers += 1
            *fields, size = frame
            self._outgoing.append((self._transfers, fds[0], size))
            self._bulk_ready.set()
            fields[1] = 0
            frame = [*fields, [self._transfers, size]]
        self._link.send(self._packer.pack(frame))

    async def send_bodies(self) -> None:
        """Send queued bodies piece by piece until the link ends."""
        try:
            while self.over is None:
                await self._bulk_ready.wait()
                self._bulk_ready.clear()
                while self._outgoing and self.over is None:
                    await self._send_body(*self._outgoing.popleft())
        except (NodeLost, ClosedError) as error:
            # The link reports its own end through ``on_lost``, after the last received frame.
            logger.info("a body for node %d is left: %s", self.node, error)
        except (OSError, MemoryError) as error:
            self._gone(f"a body could not be read to its end: {error!r}")

    async def _send_body(self, transfer: int, fd: int, size: int) -> None:
        try:
            step = int(settings.NODE_PIECE_BYTES())
            for offset in range(0, size, step):
                piece = os.pread(fd, min(step, size - offset), offset)
                await self._link.send_bulk(_HEADER.pack(transfer, size, offset) + piece)
        finally:
            os.close(fd)

    # -- receiving ----------------------------------------------------------------------------------------------

    def _control(self, data: bytes) -> None:
        if self.over is not None:
            return
        try:
            received = self._reader.feed(data)
        except frames.FrameError as error:
            self._gone(str(error))
            return
        for frame in received:
            body = frame[-1]
            if type(body) is not list and self._holdback.is_empty:  # true for nearly every frame
                self._on_frame(self, frame, [])
                continue
            transfer = body[0] if isinstance(body, list) and frame[0] in _WITH_BODY else None
            kind, source = frame[0], frame[2]
            target, number = frame[3:5] if len(frame) > 4 else (None, None)
            # Frames about channels come from the daemon itself; each pair of channel and client is a separate stream,
            # and must not wait for another stream's body.
            line = (target, number) if kind in _OF_A_DAEMON and not frames.number_of(source) else source
            branch = (target, number) if kind == frames.REPLY else None
            # GONE and events about a worker must arrive after everything that the worker sent, because a queue must
            # receive the worker's last confirmations before it takes back the leases.
            is_last = kind in (frames.EVENT, frames.GONE)
            if kind == frames.GONE:
                line = target
            self._pass_on(self._holdback.push(line, frame, transfer, branch, is_last=is_last))

    def _pass_on(self, received: list[list[Any]]) -> None:
        for frame in received:
            fds: list[int] = []
            body = frame[-1]
            if isinstance(body, list) and frame[0] in _WITH_BODY:
                transfer, size = body
                content = self._complete.pop(transfer)
                if isinstance(content, str):
                    frame[-1] = content
                else:
                    fds = [content]
                    frame[1], frame[-1] = 1, size
            self._on_frame(self, frame, fds)

    def _bulk(self, data: bytes) -> None:
        if self.over is not None:
            return
        transfer, size, offset = _HEADER.unpack_from(data)
        piece = memoryview(data)[_HEADER.size :]
        segment, size, received = self._incoming.pop(transfer, None) or (self._segment_for(size), size, 0)
        received += len(piece)
        if offset + len(piece) > size:
            self._gone("a piece of a body lies outside the body")
            return
        if isinstance(segment, PooledSegment):
            segment.write_at(piece, offset)
        if received < size:
            self._incoming[transfer] = (segment, size, received)
            return
        self._complete[transfer] = self._whole(segment, size)
        self._pass_on(self._holdback.arrived(transfer))

    # A local shortage, for example of descriptors, must not end the link to a healthy node. So only the body is
    # dropped, and an error text replaces it in its frame, as in a local process's frame.
    # tests/launcher/daemon/test_node_link.py::test_a_body_without_memory_is_reported_and_ends_no_link

    def _segment_for(self, size: int) -> PooledSegment | str:
        try:
            return self._pool.borrow(size)
        except (OSError, MemoryError) as error:
            return self._shortage(size, error)

    def _whole(self, segment: PooledSegment | str, size: int) -> int | str:
        """Return the descriptor of a complete body, or the reason why the body was dropped."""
        try:
            return segment if isinstance(segment, str) else self._pool.finish(segment)
        except OSError as error:
            return self._shortage(size, error)

    def _shortage(self, size: int, error: Exception) -> str:
        return f"{size} bytes from node {self.node} could not be taken in: {error}{limit_met(error)}"

    # -- close ------------------------------------------------------------------------------------------------

    @property
    def peer_has_ended(self) -> bool:
        """True if the node's daemon has ended, as opposed to being unreachable."""
        return self._link.peer_has_ended

    @property
    def seconds_down(self) -> float:
        """Seconds without the expected sign of life; 0 while the link is up and after it has ended."""
        return self._link.seconds_down if self.over is None else 0.0

    @property
    def lease(self) -> float:
        """Seconds without a sign of life after which the link ends."""
        return self._link.lease

    def set_lease(self, seconds: float) -> None:
        self._link.lease = seconds

    def _gone(self, reason: str) -> None:
        if self.over is None:
            self._drop(reason)
            self._on_lost(self, reason)

    async def close(self) -> None:
        """Close the link: frames already sent still arrive, but queued bodies are dropped."""
        if self.over is None:
            self._drop("this node has closed it")
        await self._link.close()

    def _drop(self, reason: str) -> None:
        self.over = reason
        self._bulk_ready.set()
        self._holdback.drop()
        for segment, _, _ in self._incoming.values():
            if isinstance(segment, PooledSegment):
                segment.close()
        close_fds([content for content in self._complete.values() if isinstance(content, int)])
        self._complete.clear()
        close_fds([fd for _, fd, _ in self._outgoing])
        self._outgoing.clear()
