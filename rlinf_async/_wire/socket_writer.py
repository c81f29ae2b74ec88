"""The writing side of a framed UNIX socket: sends from any thread, and relays undelivered frames after a break.

Frames sent within one turn of the loop are written in one system call. When its socket breaks, a *resumable* connection
keeps the unacknowledged frames, and sends them along another path (``hand_over``).
"""

from __future__ import annotations

import contextlib
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import WeakMethod

from rlinf_async._core import clock, frames
from rlinf_async._core.frames import Frame, FrameError, new_packer, pack
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.resend import Incoming, content_bytes
from rlinf_async._wire.owned_socket import OwnedSocket
from rlinf_async._wire.send_buffer import RETRY_S, SendBuffer, WriteState, close_all

logger = own_logger(__name__)

MAX_FRAME_BYTES: Final = 8 << 20
"""Maximum size of a packed frame, below the reader's own limits. Large content travels as a descriptor."""

_EMPTY: Final = WriteState.EMPTY
_BURST_S: Final = 50e-6
"""Period after a frame during which further frames wait for the end of the loop's turn."""

Relay = Callable[[list[Any], Sequence[int]], None]


class SocketWriter:
    """Writes frames to a socket, and closes the passed descriptors once they have arrived.

    The writer's callbacks do not keep their object, which owns the writer, alive. Otherwise the two would form a
    reference cycle, and only the garbage collector would free a closed connection's buffers.

    Args:
        incoming: counter of the same connection's received frames, whose acknowledgements travel with sent frames.
        resumable: keep frames that the caller sends after the socket has broken, for ``hand_over``.
        on_gone: called on the loop, never from within a call, when the socket can no longer be written.
        on_drained: called on the loop when a full socket has accepted all queued data.

    Attributes:
        thread: id of the loop's thread; 0 until the connection is open and may be written.
        sibling: writer of the other connection between the same two processes, which may also carry acknowledgements
            for this connection.
        is_closed: True once writing has stopped; later frames are kept, relayed or dropped.
        lock: held while a frame is queued, to keep the order.
    """

    def __init__(
        self,
        sock: OwnedSocket,
        loop: AbstractEventLoop,
        incoming: Incoming,
        *,
        resumable: bool,
        on_gone: Callable[[], None],
        on_drained: Callable[[], None],
    ) -> None:
        self._socket = sock
        self._sock = sock.sock
        self._loop = loop
        self.incoming = incoming
        self._is_resumable = resumable
        self._on_gone = WeakMethod(on_gone)
        self._on_drained = WeakMethod(on_drained)
        self.thread = 0
        self.sibling: SocketWriter | None = None
        self.is_closed = False
        self.lock = threading.Lock()
        self.buffer = SendBuffer()
        self._packer = new_packer()
        self._relay: Relay | None = None
        self._is_scheduled = False
        self._is_blocked = False
        self._sent_at = 0.0

    def send(
        self,
        frame: Frame,
        fds: Sequence[int] = (),
        *,
        later: bool = False,
        hold: bool = False,
        now: bool = False,
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        """Send a frame.

        On the loop's thread a single frame is written immediately, and frames that closely follow it are written
        together at the end of the loop's turn. On another thread a frame is written immediately, unless ``later`` says
        that more frames will follow.

        Args:
            hold: send the frame together with the next frame that is not held.
            now: always send the frame immediately if the socket accepts it.
            on_sent: called, on any thread, once the kernel has the whole frame, which then arrives even if this process
                dies.

        Raises:
            ValueError: the frame has more than ``MAX_FRAME_BYTES`` bytes.
        """
        with self.lock:
            if self.is_closed:
                self._send_closed(frame, fds)
                return
            data = self._packer.pack(frame)
            if len(data) > MAX_FRAME_BYTES:
                close_all(fds)
                raise _too_large(frame, data)
            sibling = self.sibling
            if self.incoming.is_due or (sibling is not None and sibling.incoming.is_due):
                self._add_acknowledgements(sibling)
            buffer = self.buffer
            if fds or on_sent is not None:
                buffer.add(data, fds, content_bytes(frame) if fds else 0, on_sent)
            else:
                buffer.add_plain(data)
            if hold or (self._is_scheduled and not now) or self._is_blocked or not self.thread:
                return
            if now:
                pass
            elif threading.get_ident() == self.thread:
                moment = clock.monotonic()
                if moment - self._sent_at < _BURST_S:
                    self._is_scheduled = True
                    self._loop.call_soon(self.flush)
                    return
                self._sent_at = moment
            elif later:
                self._is_scheduled = True
                self._loop.call_soon_threadsafe(self.flush)
                return
            state = buffer.write_to(self._sock)
            if state is _EMPTY and not buffer.callbacks:
                return
            callbacks = self._written(state)
        self._follow_up(state, callbacks)

    def send_all(self, sent: Sequence[tuple[Frame, Sequence[int]]]) -> None:
        """Send several frames in few system calls, on the loop's thread. On ValueError no frame was sent."""
        with self.lock:
            if self.is_closed:
                for _, fds in sent:
                    close_all(fds)
                return
            packed = [(self._packer.pack(frame), fds) for frame, fds in sent]
            for index, (data, _) in enumerate(packed):
                if len(data) > MAX_FRAME_BYTES:
                    for _, fds in sent:
                        close_all(fds)
                    raise _too_large(sent[index][0], data)
            for (data, fds), (frame, _) in zip(packed, sent, strict=True):
                self.buffer.add(data, fds, content_bytes(frame) if fds else 0)
            if self._is_scheduled or self._is_blocked:
                return
            self._sent_at = clock.monotonic()
        self._write()

    def send_acknowledgement(self, about: int = frames.OF_THIS) -> None:
        """Send an acknowledgement, alone or with the frames sent at the end of the loop's turn."""
        with self.lock:
            if self.is_closed:
                return
            self.buffer.add_control(pack(self.incoming.acknowledge(about)))
            if self._is_scheduled:
                return
        self._write()

    def _add_acknowledgements(self, sibling: SocketWriter | None) -> None:
        if self.incoming.is_due:
            self.buffer.add_control(pack(self.incoming.acknowledge()))
        if sibling is not None and sibling.incoming.is_due:
            self.buffer.add_control(pack(sibling.incoming.acknowledge(frames.OF_SIBLING)))

    def acknowledged(self, received: int, about: int) -> None:
        """Record that the other side has received this many frames.

        Raises:
            FrameError: the number is impossible, or frames that the peer requests again were dropped.
        """
        if about == frames.OF_SIBLING:
            sibling = self.sibling
            if sibling is not None:
                with sibling.lock:
                    sibling.buffer.kept.acknowledge(received)
            return
        with self.lock:
            self.buffer.kept.acknowledge(received)
            if about != frames.LOST:
                return
            try:
                self.buffer.restart(received)
            except OSError as error:
                raise FrameError(f"a content that is wanted again cannot be read: {error}") from error
        self._write()

    # -- writing to the kernel ----------------------------------------------------------------------------------

    def is_behind(self) -> bool:
        """True if queued data cannot be written now; always true once the socket has broken."""
        if self.is_closed:
            return True
        if self.buffer:
            self._write()
        return bool(self.buffer)

    def flush(self) -> None:
        self._is_scheduled = False
        self._sent_at = clock.monotonic()
        if self.buffer and not self._is_blocked:
            self._write()

    def _write(self) -> None:
        with self.lock:
            if self.is_closed or self._is_blocked:
                return
            state = self.buffer.write_to(self._sock)
            callbacks = self._written(state)
        self._follow_up(state, callbacks)

    def _written(self, state: WriteState) -> Sequence[Callable[[], None]]:
        # Data for a broken socket stays queued until the break is handled, so the socket counts as behind.
        # tests/_wire/test_breaks.py::test_a_broken_socket_is_behind_from_the_write_on_that_fails
        self._is_blocked = state is not _EMPTY
        return self.buffer.take_callbacks()

    def _follow_up(self, state: WriteState, callbacks: Sequence[Callable[[], None]]) -> None:
        if state is WriteState.FULL:
            self.on_loop(self._await_writable)
        elif state is WriteState.SHORT:
            self.on_loop(self._await_relief)
        elif state is WriteState.GONE:
            # Report the end here, because the loop no longer watches a descriptor that user code has closed. Schedule
            # the callback instead of calling it directly: the sender may hold locks, and frames already read must be
            # handled before unread frames.
            on_gone = self._on_gone()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                if on_gone is not None:
                    self._loop.call_soon_threadsafe(on_gone)
        for callback in callbacks:
            callback()

    def _await_writable(self) -> None:
        if not self.is_closed and self._socket.is_intact():
            self._loop.add_writer(self._sock.fileno(), self._writable)

    def _await_relief(self) -> None:
        if not self.is_closed:
            logger.info("the kernel has too many descriptors under way, or no memory: asking again")
            self._loop.call_later(RETRY_S, self._resume)

    def _writable(self) -> None:
        self._loop.remove_writer(self._sock.fileno())
        self._resume()

    def _resume(self) -> None:
        self._is_blocked = False
        self._write()
        if not self.buffer and (on_drained := self._on_drained()) is not None:
            on_drained()

    def on_loop(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` on the loop's thread, immediately if it is the current thread."""
        if threading.get_ident() == self.thread:
            callback()
        else:
            self._loop.call_soon_threadsafe(callback)

    # -- after the socket has broken ----------------------------------------------------------------------------

    def _send_closed(self, frame: Frame, fds: Sequence[int]) -> None:
        if self._relay is not None:
            self._relay(list(frame), fds)
        elif self._is_resumable:
            data = self._packer.pack(frame)
            if fds:
                self.buffer.kept.add((data, fds, content_bytes(frame)))
            else:
                self.buffer.kept.add_plain(data)
        else:
            close_all(fds)

    def hand_over(self, received: int, relay: Relay) -> None:
        """Send the frames that the other side lacks, and all later ones, along another path, after this connection
        broke.

        The lock is held until the end. Otherwise a thread that sends during the handover would either overtake earlier
        frames or add to the kept frames after they were taken, where nothing would send them
        (tests/test_broken_sockets.py::test_calls_outlive_their_socket_and_run_once_in_order).

        Args:
            received: number of frames received by the other side.
            relay: sends a frame and its descriptors; it must not use this connection.

        Raises:
            FrameError: the number is impossible.
        """
        with self.lock:
            for frame, fds in self.buffer.kept.take(received):
                relay(frame, fds)
            self._relay = relay

    def flush_blocking(self, timeout: float) -> None:
        """Write the queued frames before the process exits, waiting at most ``timeout`` seconds."""
        with self.lock, contextlib.suppress(OSError):
            self._sock.settimeout(max(timeout, 0.001))
            while self.buffer.write_to(self._sock) is WriteState.FULL:
                pass

    def end(self) -> None:
        """Stop writing; the caller holds the lock. A resumable connection keeps its undelivered frames."""
        self.is_closed = True
        sibling, self.sibling = self.sibling, None
        if sibling is not None:
            sibling.sibling = None
        self.buffer.stop()
        if not self._is_resumable:
            self.buffer.drop()

    def drop(self) -> None:
        """Drop the kept frames, and do not keep later ones."""
        self._is_resumable = False
        self.buffer.drop()


def _too_large(frame: Frame, data: bytes) -> ValueError:
    return ValueError(
        f"a frame of kind {frame[0]} takes {len(data)} bytes, more than {MAX_FRAME_BYTES}: what is large goes into the "
        "arguments of a call, where it travels on its own"
    )
