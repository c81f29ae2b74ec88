"""Writing side of a framed UNIX socket: sends from any thread; relays undelivered frames once it has broken.

What is sent within one turn of the loop leaves in one system call.  The frames of a *resumable* connection that the
other side has not acknowledged when the socket breaks are kept, and go another way (``hand_over``).
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
from rlinf_async._wire.send_buffer import RETRY_S, SendBuffer, State, close_all

logger = own_logger(__name__)

MAX_FRAME_BYTES: Final = 8 << 20
"""Bytes of a packed frame; the reader's own limits lie above it.  What is large travels as a descriptor."""

_EMPTY: Final = State.EMPTY
_BURST_S: Final = 50e-6
"""A frame that follows another one sooner than this waits for the end of the loop's turn."""

Relay = Callable[[list[Any], Sequence[int]], None]


class SocketWriter:
    """Sends frames on a socket; descriptors given to it are closed when they have arrived.

    The methods that it calls back do not keep their object alive, which has this one: in a circle, only the garbage
    collector would free the buffers of what is closed.

    Args:
        incoming: of the same connection; its acknowledgements ride on the frames that are sent.
        resumable: what is sent once the socket has ended is kept for ``hand_over``.
        on_gone: called on the loop, never from within a call, when nothing can be written any more.
        on_drained: called on the loop when everything has left after the socket had been full.

    Attributes:
        thread: the loop's; 0 until the connection is open, and until then nothing leaves.
        sibling: of the other connection between the same two processes, if any: acknowledgements ride there too.
        is_closed: nothing is written any more; what is sent is kept, relayed or dropped.
        lock: held while a frame is put into its place in the order.
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
        """Sends a frame.

        On the loop's thread a lone frame leaves at once, and those that follow it closely leave together at the end of
        the turn.  From another thread it leaves at once, unless ``later`` says that more will follow.

        Args:
            hold: it leaves with the next one that is not held.
            now: it leaves at once in any case, as long as the socket takes it.
            on_sent: called, in any thread, when the kernel has all of it: then it arrives, even if this process dies.

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
        """Sends several frames in as few system calls as their descriptors allow; on the loop's thread.

        Raises:
            ValueError: as ``send``; then none of them has left.
        """
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
        """Sends one by itself; or with what leaves at the end of the turn."""
        with self.lock:
            if self.is_closed:
                return
            self.buffer.add_control(pack(self.incoming.acknowledge(about)))
            if self._is_scheduled:
                return
        self._write()

    def _add_acknowledgements(self, sibling: SocketWriter | None) -> None:
        """Has those that are due leave with the frame that is about to be sent; under the lock."""
        if self.incoming.is_due:
            self.buffer.add_control(pack(self.incoming.acknowledge()))
        if sibling is not None and sibling.incoming.is_due:
            self.buffer.add_control(pack(sibling.incoming.acknowledge(frames.OF_SIBLING)))

    def acknowledged(self, received: int, about: int) -> None:
        """The other side has so many frames.

        Raises:
            FrameError: it cannot have so many, or what it wants again cannot be had.
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
        """Whether anything waits to leave that cannot leave now: all of it, once the socket has ended."""
        if self.is_closed:
            return True
        if self.buffer:
            self._write()
        return bool(self.buffer)

    def flush(self) -> None:
        """Writes what was sent within this turn of the loop."""
        self._is_scheduled = False
        self._sent_at = clock.monotonic()
        if self.buffer and not self._is_blocked:
            self._write()

    def _write(self) -> None:
        """Writes until nothing is left or the socket takes no more."""
        with self.lock:
            if self.is_closed or self._is_blocked:
                return
            state = self.buffer.write_to(self._sock)
            callbacks = self._written(state)
        self._follow_up(state, callbacks)

    def _written(self, state: State) -> Sequence[Callable[[], None]]:
        """The callbacks that are due after a write; under the lock."""
        # What a socket that is gone owes stays in the queue until its end is handled: it is behind all that time.
        # tests/_wire/test_breaks.py::test_a_broken_socket_is_behind_from_the_write_on_that_fails
        self._is_blocked = state is not _EMPTY
        return self.buffer.take_callbacks()

    def _follow_up(self, state: State, callbacks: Sequence[Callable[[], None]]) -> None:
        if state is State.FULL:
            self.on_loop(self._await_writable)
        elif state is State.SHORT:
            self.on_loop(self._await_relief)
        elif state is State.GONE:
            # Nothing else may tell of it: where user code has closed the descriptor, the loop does not watch it any
            # more.  Never from within: the sender may hold locks, and what is being read comes before what is unread.
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
        """Calls back on the loop's thread: now if that is this one."""
        if threading.get_ident() == self.thread:
            callback()
        else:
            self._loop.call_soon_threadsafe(callback)

    # -- once the socket has ended ------------------------------------------------------------------------------

    def _send_closed(self, frame: Frame, fds: Sequence[int]) -> None:
        """Under the lock."""
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
        """Sends all that the other side lacks, and whatever is sent from now on, another way; once this has ended.

        The lock is held to the end.  Without it a thread that sends meanwhile would either overtake the frames before
        its own, or add to those kept after they were taken, where nothing sends them any more
        (tests/test_broken_sockets.py::test_calls_outlive_their_socket_and_run_once_in_order).

        Args:
            received: frames that the other side has.
            relay: takes a frame and its descriptors; it must not send on this connection.

        Raises:
            FrameError: the other side cannot have so many.
        """
        with self.lock:
            for frame, fds in self.buffer.kept.take(received):
                relay(frame, fds)
            self._relay = relay

    def flush_blocking(self, timeout: float) -> None:
        """Last words of a process that is about to end: writes what is queued, waiting at most ``timeout`` seconds."""
        with self.lock, contextlib.suppress(OSError):
            self._sock.settimeout(max(timeout, 0.001))
            while self.buffer.write_to(self._sock) is State.FULL:
                pass

    def end(self) -> None:
        """Writes no more; under the lock.  What a resumable connection has not delivered stays kept."""
        self.is_closed = True
        sibling, self.sibling = self.sibling, None
        if sibling is not None:
            sibling.sibling = None
        self.buffer.stop()
        if not self._is_resumable:
            self.buffer.drop()

    def drop(self) -> None:
        """Keeps nothing of what was sent, nor of what will be."""
        self._is_resumable = False
        self.buffer.drop()


def _too_large(frame: Frame, data: bytes) -> ValueError:
    return ValueError(
        f"a frame of kind {frame[0]} takes {len(data)} bytes, more than {MAX_FRAME_BYTES}: what is large goes into the "
        "arguments of a call, where it travels on its own"
    )
