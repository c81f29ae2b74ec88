"""Reading side of a framed UNIX socket: splits frames, attaches their descriptors, processes acknowledgements.

A receiver without a free descriptor gets the content of a frame as bytes (``_core/resend.py``).
"""

from __future__ import annotations

import array
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import WeakMethod

from rlinf_async._core import frames
from rlinf_async._core.frames import FrameError, FrameReader
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.resend import Incoming
from rlinf_async._wire.acknowledgements import Acknowledgements
from rlinf_async._wire.send_buffer import MAX_FDS_PER_CALL, close_all
from rlinf_async._wire.socket_writer import SocketWriter

logger = own_logger(__name__)

OnFrame = Callable[[list[Any], list[int]], None]

_READ_BYTES: Final = 256 * 1024
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(MAX_FDS_PER_CALL * 4)
_ACK: Final = frames.ACK

# As plain numbers: the enum members of `socket` cost microseconds in arithmetic.
_CLOEXEC: Final = int(socket.MSG_CMSG_CLOEXEC)
_CTRUNC: Final = int(socket.MSG_CTRUNC)


class SocketReader:
    """Reads a non-blocking socket; one thread at a time.

    Args:
        incoming: counts what arrives.
        writer: of the same connection: it is told what the other side acknowledges.
        on_failed: a method that is called where the socket or what it brings cannot be read; its object is not kept
            alive.

    Attributes:
        is_handling: some frame is being handled, further up in the stack.
        is_stopped: nothing is read any more.
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
        """Whether ``read`` finds anything, an end or an error; a fifth of the time of a read that finds nothing."""
        return bool(self._poll(0))

    def read(self) -> bool | None:
        """Reads what is there, once.  False at the end of the stream, None when nothing is left."""
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
        except FrameError as error:
            broken = str(error)
        # Before the first of these frames is handled, other sockets are read: what is there now was sent before them,
        # and these may tell of it.  After it has been read and not before: what comes later is later.
        # tests/_wire/test_unix.py::
        # test_what_has_arrived_on_another_way_before_is_handled_before_and_after_what_came_before_it
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
        # What is less than there was room for is all that there was, unless it ends with a descriptor.
        return True if ancillary or size == _READ_BYTES else None

    def _take(self, data: memoryview) -> None:
        """Sorts what has been read into frames and their descriptors."""
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
        """Handles what has been read; from within a handler, what is left of it."""
        inside, self.is_handling = self.is_handling, True
        try:
            while self._arrived:
                frame, fds = self._arrived.popleft()
                try:
                    self._on_frame(frame, fds)
                except Exception:
                    # One frame that cannot be handled must not keep the others from their receivers.
                    logger.exception("a frame of kind %d could not be handled", frame[0])
        finally:  # on a main thread a signal's handler may end a process, or try to
            self.is_handling = inside

    def _fail(self, reason: str) -> None:
        if (on_failed := self._on_failed()) is not None:
            on_failed(reason)

    def stop(self) -> None:
        """Reads no more, and drops what has been read and not handled."""
        self.is_stopped = True
        for _, fds in self._arrived:
            close_all(fds)
        self._arrived.clear()
        self._incoming.drop()

    def let_go(self) -> None:
        """Once its socket is closed: gives its memory back, whoever still keeps it."""
        self._buffer = memoryview(b"")


def _rights(ancillary: list[tuple[int, int, bytes]]) -> Sequence[int]:
    """The descriptors that have come with a read."""
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return fds
