"""``Connection``, a framed UNIX socket, and its ``SocketReader``: sends, receives, chooses the reading thread, closes.

A connection uses one plain non-blocking socket, ``add_reader`` and ``recvmsg``, which is as fast as a transport and
delivers descriptors with the bytes of their frame. ``SocketWriter`` sends and ``SocketReader`` reads. A receiver
without a free descriptor gets a frame's content as bytes (``_core/resend.py``).
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import select
import socket
import termios
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import WeakMethod

from rlinf_async._core import frames
from rlinf_async._core.frames import FrameReader
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.resend import Incoming
from rlinf_async._wire.acknowledgements import Acknowledgements
from rlinf_async._wire.owned_socket import OwnedSocket
from rlinf_async._wire.reading.idle_reader import RECENT_POLL_S, IdleReader, ReadArbiter
from rlinf_async._wire.send_buffer import MAX_FDS_PER_CALL, close_all
from rlinf_async._wire.socket_writer import SocketWriter

logger = own_logger(__name__)

OnFrame = Callable[[list[Any], list[int]], None]

_READ_BYTES: Final = 256 * 1024
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(MAX_FDS_PER_CALL * 4)
_ACK: Final = frames.ACK

# Plain integers, because arithmetic with the enum members of `socket` costs microseconds.
_CLOEXEC: Final = int(socket.MSG_CMSG_CLOEXEC)
_CTRUNC: Final = int(socket.MSG_CTRUNC)


class Connection:
    """One end of a framed UNIX socket.

    ``on_frame(frame, fds)`` is called on the loop for every frame; the callee owns the descriptors. ``on_arrival()``
    precedes the first frame of a wake-up, when its bytes have been read but not yet handled; ``on_batch()`` follows the
    last frame. ``on_closed(reason)`` is called once, when the other end has exited or has broken the protocol, but not
    after a local ``close()``.

    A second thread may also read (``share``); these callbacks then run on either thread, but never on both at once.
    Callbacks of connections that share an ``arbiter`` never run at the same time, either.

    Args:
        resumable: keep frames that the caller sends after a failure, so that ``hand_over`` can deliver them.

    Attributes:
        send, send_all, is_behind, hand_over, flush_blocking: methods of its ``SocketWriter``, bound directly for speed.
        on_drained: called on the loop when a full socket has accepted all queued data.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        *,
        on_frame: Callable[[list[Any], list[int]], None],
        on_closed: Callable[[str], None],
        on_batch: Callable[[], None] | None = None,
        on_arrival: Callable[[], None] | None = None,
        arbiter: ReadArbiter | None = None,
        resumable: bool = False,
    ) -> None:
        self._loop = loop
        self._on_closed = on_closed
        self._arbiter = arbiter or ReadArbiter()
        self._idle: IdleReader | None = None
        self.on_drained: Callable[[], None] | None = None
        self._socket = OwnedSocket(sock, self._number_taken)
        self._incoming = Incoming()
        self._writer = writer = SocketWriter(
            self._socket,
            loop,
            self._incoming,
            resumable=resumable,
            on_gone=self._read_rest_and_fail,
            on_drained=self._drained,
        )
        self.reader = SocketReader(
            sock,
            self._incoming,
            writer,
            Acknowledgements(self._incoming, writer, loop),
            on_frame=on_frame,
            on_batch=on_batch,
            on_arrival=on_arrival,
            on_failed=self._fail,
        )
        self._read = self.reader.read
        self.send = writer.send
        self.send_all = writer.send_all
        self.is_behind = writer.is_behind
        self.hand_over = writer.hand_over
        self.flush_blocking = writer.flush_blocking

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        return f"<Connection fd {self.fileno()} {state} [{len(self._writer.buffer)} chunks queued]>"

    @property
    def is_closed(self) -> bool:
        """True once reading and writing have stopped; unacknowledged frames are kept for another path."""
        return self._writer.is_closed

    @property
    def queued_bytes(self) -> int:
        return self._writer.buffer.nbytes

    @property
    def received(self) -> int:
        return self._incoming.received

    def fileno(self) -> int:
        return self._socket.fileno()

    def open(self) -> None:
        """Start reading. Call this on the loop's own thread."""
        if self.is_closed:
            return
        # The loop may still have callbacks for an earlier socket with this number, which user code has closed. Remove
        # them; otherwise a reader would be replaced but not watched again, and a writer would be called forever.
        self._loop.remove_reader(self.fileno())
        self._loop.remove_writer(self.fileno())
        self._writer.thread = threading.get_ident()
        self._watch()
        self._writer.flush()

    def share(self, idle: IdleReader) -> None:
        """Let another thread read while that thread is idle. Call this before ``open``."""
        self._idle = idle
        self._arbiter.idle_loop = idle.loop
        idle.add(self.fileno(), self._readable_elsewhere)

    def link(self, sibling: Connection) -> None:
        """Link two connections to the same process, so that one may carry the other's acknowledgements.

        Only the first two sockets between two processes may be linked. Each side notices independently that a socket
        has been replaced, and a frame count of the old socket must not be taken for a count of the new one.
        """
        self._writer.sibling, sibling._writer.sibling = sibling._writer, self._writer

    def _drained(self) -> None:
        if self.on_drained is not None:
            self.on_drained()

    # -- reading ------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        if self._idle is not None and self._idle.has_just_polled() and self._socket.fileno() >= 0:
            # The main thread will poll in a moment. If this thread read the data now and handed it over, both threads
            # would compete for the interpreter. So stop watching the socket, which stays readable, for that moment. The
            # timer makes this thread read after all in case the main thread has entered user code in the meantime.
            # tests/_wire/reading/test_second_thread.py::test_who_looks_no_more_has_the_other_thread_read
            self._loop.remove_reader(self._socket.fileno())
            self._loop.call_later(RECENT_POLL_S, self._watch)
            return
        with self._arbiter.lock:
            if self._read() is False:
                self._fail("end of file")
            self._arbiter.handled()

    def _watch(self) -> None:
        if self.is_closed:
            return
        with contextlib.suppress(OSError):
            if self._socket.is_intact():
                self._loop.add_reader(self.fileno(), self._readable)
                return
        self._read_rest_and_fail()  # user code has closed the descriptor

    def _read_all(self) -> None:
        with self._arbiter.lock:
            more = self._read()
            while more:
                more = self._read()
            if more is False:
                self._fail("end of file")

    def _readable_here(self) -> None:
        with self._arbiter.lock:
            self._read_all()
            self._arbiter.handled()

    def _readable_elsewhere(self, in_loop: bool) -> None:
        """Read on the other thread, from its loop (``in_loop``) or while it blocks."""
        # Read to the last byte: an exclusive wake-up goes to only one thread, so the other thread is not notified of
        # left-over bytes, which would wait for the next frame. tests/_wire/reading/test_second_thread.py::
        # test_the_thread_that_reads_reads_all_that_is_there
        with self._arbiter.lock:
            if in_loop and not self._arbiter.may_read:
                self._loop.call_soon_threadsafe(self._readable_here)
                return
            self._read_all()
            if not in_loop:
                self._arbiter.handled()
            if self.reader.is_stopped and self._idle is not None:
                self._idle.remove(self.fileno())

    def drain(self) -> None:
        """Handle the frames already read, then read everything that the other side sent before it exited."""
        with self._arbiter.lock:
            self.reader.handle()
            while self.reader.has_more() and self._read():
                pass

    def drain_if_intact(self) -> None:
        with self._arbiter.lock:
            if self._socket.is_intact():
                self.drain()
            else:
                self.reader.handle()

    def read_available(self) -> None:
        """Read everything that the other side has sent so far; it may continue to send."""
        with self._arbiter.lock:
            self.reader.handle()
            if self.is_closed:
                return
            # Reading until the socket is empty could take forever if the sender never pauses. All bytes sent before the
            # call are already in the socket, so read only that many. tests/_wire/test_unix.py::
            # test_what_had_been_said_is_read_at_once_and_no_more_is_waited_for
            available = array.array("i", [0])
            try:
                fcntl.ioctl(self.fileno(), termios.FIONREAD, available)
            except OSError as error:  # user code has closed the descriptor
                self._fail(f"{type(error).__name__}: {error}")
                return
            # The bytes are not for this reader if another file now has the descriptor's number.
            if available[0] and not self._socket.is_intact():
                self._fail("its descriptor was closed")
                return
            until = self._incoming.read_bytes + available[0]
            while self._incoming.read_bytes < until and self._read():
                pass

    # -- close ----------------------------------------------------------------------------------------------------

    def _number_taken(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._read_rest_and_fail)

    def _read_rest_and_fail(self) -> None:
        """Read everything that the other side has sent, then fail because the socket can no longer be written."""
        if self.is_closed:
            return
        if self._socket.is_intact():
            self._read_all()
        if not self.is_closed:
            self._fail("nothing can be written to it")

    def _fail(self, reason: str) -> None:
        if threading.get_ident() != self._writer.thread and self._writer.thread:
            self.reader.is_stopped = True
            self._loop.call_soon_threadsafe(self._fail, reason)
        else:
            # The other thread may be resuming this very socket and creating its successor for the same peer; calling
            # ``on_closed`` after that would end the successor. So first acquire the lock, then check whether there is
            # still anything to report.
            # tests/_wire/test_breaks.py::test_the_late_end_of_a_socket_that_has_been_resumed_is_told_to_nobody
            with self._arbiter.lock:
                if not self.is_closed:
                    self.end()
                    self._on_closed(reason)

    def shut(self) -> None:
        """Make both ends see the end of the stream; this end's reader then closes it. Any thread may call this."""
        with contextlib.suppress(OSError):
            self._socket.sock.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Drop the parent's socket in a forked child without touching the parent's loop."""
        self._writer.is_closed = self.reader.is_stopped = True
        self._writer.drop()
        self._socket.leave_to_parent()

    def close(self) -> None:
        """Close the socket and all descriptors not handed over; send and keep no frames. Idempotent; call this on the
        loop's thread."""
        self.end()
        with self._writer.lock:
            self._writer.drop()

    def end(self) -> None:
        """Stop reading and writing; a resumable connection keeps its undelivered frames. Idempotent; call this on the
        loop's or a reading thread."""
        with self._writer.lock:
            if self.is_closed:
                return
            self._writer.end()
            self.reader.stop()
        if self._writer.thread and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._writer.on_loop(self._release)
                return
        self._release()

    def _release(self) -> None:
        """Close the socket on the loop's thread: its number must not be reused while the selector knows it."""
        fileno = self.fileno()
        if fileno < 0:
            return
        # If user code has closed the descriptor, its number may belong to a user's file watched by the same loop.
        if self._writer.thread and not self._loop.is_closed() and not self._socket.is_another_file():
            with contextlib.suppress(OSError):
                self._loop.remove_reader(fileno)
                self._loop.remove_writer(fileno)
        with self._arbiter.lock:  # wait until no thread is about to read
            if self._idle is not None:
                self._idle.remove(fileno)
            self._socket.close()
            # Free the buffer now, because a reference cycle may keep the closed reader until the garbage collector
            # runs.
            self.reader.release_buffer()


class SocketReader:
    """A reader of frames from a non-blocking socket, for use by one thread at a time.

    Args:
        writer: writer of the same connection, which is notified of the other side's acknowledgements.
        on_failed: bound method called if the socket or its content cannot be read; its object is not kept alive.

    Attributes:
        is_handling: True while a frame is being handled further up the call stack.
        is_stopped: True once reading has stopped for good.
    """

    def __init__(
        self,
        sock: socket.socket,
        incoming: Incoming,
        writer: SocketWriter,
        acknowledgements: Acknowledgements,
        *,
        on_frame: OnFrame,
        on_batch: Callable[[], None] | None,
        on_arrival: Callable[[], None] | None,
        on_failed: Callable[[str], None],
    ) -> None:
        self._sock = sock
        self._incoming = incoming
        self._writer = writer
        self._acknowledgements = acknowledgements
        self._on_frame = on_frame
        self._on_batch = on_batch
        self._on_arrival = on_arrival
        self._on_failed = WeakMethod(on_failed)
        self.is_handling = False
        self.is_stopped = False
        self._arrived: deque[tuple[list[Any], list[int]]] = deque()
        self._frames = FrameReader()
        self._buffer = memoryview(bytearray(_READ_BYTES))
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        self._poll = poll.poll

    def has_more(self) -> bool:
        """True if ``read`` would find data, an end or an error; takes a fifth of the time of an empty read."""
        return bool(self._poll(0))

    def read(self) -> bool | None:
        """Read once. Return False at the end of the stream, None if no data is left."""
        if self.is_stopped:
            return None
        try:
            size, ancillary, flags, _ = self._sock.recvmsg_into([self._buffer], _ANCILLARY_BYTES, _CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            if not self.is_stopped:
                self._fail(f"{type(error).__name__}: {error}")
            return None
        if size == 0:
            return False
        incoming = self._incoming
        if ancillary or flags & _CTRUNC:
            incoming.add_fds(_rights(ancillary), truncated=bool(flags & _CTRUNC))
        incoming.read_bytes += size
        broken = None
        try:
            self._take(self._buffer[:size])
        except Exception as error:  # FrameError, or a TypeError for a field that makes no sense
            broken = str(error) or repr(error)
        # Read the other sockets before handling the first of these frames: data on them was sent earlier, and these
        # frames may depend on it. Do so only after reading this socket, because an earlier read could miss some of that
        # data. tests/_client/test_client.py::test_a_daemons_earlier_frames_precede_later_direct_ones
        if self._on_arrival is not None:
            self._on_arrival()
        self.handle()
        if broken is not None:
            self._fail(broken)
        if self._writer.is_closed or broken is not None:
            return None
        if self._on_batch is not None:
            self._on_batch()
        if incoming.received >= incoming.look_at or incoming.descriptors:
            self._acknowledgements.consider()
        # A read that did not fill the buffer has emptied the socket, unless it stopped early at a descriptor.
        return True if ancillary or size == _READ_BYTES else None

    def _take(self, data: memoryview) -> None:
        incoming, arrived = self._incoming, self._arrived
        strict = incoming.is_strict
        for frame in self._frames.feed(data):
            if not (strict or frame[1] or frame[0] >= _ACK):
                incoming.received += 1
                arrived.append((frame, []))
            elif frame[0] == _ACK:
                self._writer.acknowledged(frame[2], frame[3])
            else:
                strict = True
                if (taken := incoming.take(frame)) is not None:
                    arrived.append(taken)
        if strict and incoming.end_read():
            logger.info("file descriptors were lost on the way (is the limit reached? `ulimit -n`): asking for bytes")
            self._writer.send_acknowledgement(frames.LOST)

    def handle(self) -> None:
        """Handle the frames that were read; if called within a handler, handle the remaining ones."""
        inside, self.is_handling = self.is_handling, True
        try:
            while self._arrived:
                frame, fds = self._arrived.popleft()
                try:
                    self._on_frame(frame, fds)
                except Exception:
                    # One frame that cannot be handled must not block the others.
                    logger.exception("a frame of kind %d could not be handled", frame[0])
        finally:  # a signal handler may raise on the main thread
            self.is_handling = inside

    def _fail(self, reason: str) -> None:
        if (on_failed := self._on_failed()) is not None:
            on_failed(reason)

    def stop(self) -> None:
        """Stop reading, and drop frames that were read but not handled."""
        self.is_stopped = True
        for _, fds in self._arrived:
            close_all(fds)
        self._arrived.clear()
        self._incoming.drop()

    def release_buffer(self) -> None:
        """Free the buffer of a closed socket, even while references to this object remain."""
        self._buffer = memoryview(b"")


def _rights(ancillary: list[tuple[int, int, bytes]]) -> Sequence[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return fds
