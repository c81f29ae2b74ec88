"""A socket's send buffer: writes packed frames with their descriptors in batches, and keeps them until acknowledged.

Not thread-safe; the owner must hold a lock::

    buffer.add(data, fds, nbytes, on_sent)
    state = buffer.write_to(sock)               # writes until the buffer is empty or the socket is full
    for callback in buffer.take_callbacks():    # without the lock: callbacks are foreign code
        callback()
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final

from rlinf_async._core import frames
from rlinf_async._core.resend import Sent, Unacknowledged, pieces

MAX_FDS_PER_CALL: Final = 64
"""Maximum number of descriptors per system call."""
_BATCH_BYTES: Final = 256 * 1024
_RESTART: Final = frames.pack((frames.RESTART, 0))

# A plain integer, because arithmetic with the enum members of `socket` costs microseconds.
_NOSIGNAL: Final = int(socket.MSG_NOSIGNAL)

PASSING: Final = frozenset((errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM))
"""Transient errors (too many descriptors in transit, no memory): the socket accepts the same bytes later."""

RETRY_S: Final = 0.005


class WriteState(Enum):
    EMPTY = "everything has left"
    FULL = "the socket takes no more for now, and says when it does"
    SHORT = "the kernel is short of something, and does not say when it no longer is"
    GONE = "the other end is gone"


class SendBuffer:
    """A queue of packed frames to be written in order.

    Attributes:
        nbytes: number of bytes added but not yet written.
        kept: frames, with their descriptors, that the other side may not have received.
        callbacks: callbacks of unsent frames, each with the number of sent bytes at which it is called.
    """

    __slots__ = ("_queue", "_sent_bytes", "callbacks", "kept", "nbytes")

    def __init__(self) -> None:
        self._queue: deque[Sent] = deque()
        self.kept = Unacknowledged()
        self.nbytes = 0
        self._sent_bytes = 0
        self.callbacks: deque[tuple[int, Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, data: bytes, fds: Sequence[int], nbytes: int = 0, on_sent: Callable[[], None] | None = None) -> None:
        """Append a packed frame with ``nbytes`` of content.

        Until the frame is acknowledged, it is kept, and its descriptors stay open.
        """
        if nbytes and self.kept.is_too_much and not self._queue:
            self.kept.forfeit()
        if fds:
            frame_with_fds = data, fds, nbytes
            self.kept.add(frame_with_fds)
            self._queue.append(frame_with_fds)
        else:
            self.kept.add_plain(data)
            self._queue.append(data)
        self.nbytes += len(data)
        if on_sent is not None:
            self.callbacks.append((self._sent_bytes + self.nbytes, on_sent))

    def add_plain(self, data: bytes) -> None:
        """Like ``add``, without descriptors or callback."""
        self.kept.add_plain(data)
        self._queue.append(data)
        self.nbytes += len(data)

    def add_control(self, data: bytes) -> None:
        """Append data that is not kept for retransmission."""
        self._queue.append(data)
        self.nbytes += len(data)

    def restart(self, received: int) -> None:
        """Send everything after the first ``received`` frames again, without descriptors.

        The queue keeps its content, because part of it may already have been sent; the other side skips that part.
        Raise FrameError or OSError if retransmission is impossible.
        """
        self.add_control(_RESTART)
        for data, fds, nbytes in self.kept.since(received):
            for piece in pieces(data, fds, nbytes):
                self.add_control(piece)

    def write_to(self, sock: socket.socket) -> WriteState:
        """Write as much as the socket accepts, in as few system calls as the descriptors allow."""
        queue = self._queue
        while queue:
            sent = queue.popleft()
            fds: Sequence[int] = ()
            if isinstance(sent, bytes):
                data = sent
            else:
                data, fds, _ = sent
            if queue and len(data) < _BATCH_BYTES:
                data, fds = self._coalesced(data, fds)
            try:
                if fds:
                    rights = array.array("i", fds)
                    written = sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], _NOSIGNAL)
                    fds = ()
                else:
                    written = sock.send(data, _NOSIGNAL)
            except BlockingIOError:
                queue.appendleft((data, fds, 0))
                return WriteState.FULL
            except OSError as error:
                queue.appendleft((data, fds, 0))
                return WriteState.SHORT if error.errno in PASSING else WriteState.GONE
            self.nbytes -= written
            self._sent_bytes += written
            if written < len(data):
                queue.appendleft((data[written:], fds, 0))
                return WriteState.FULL
        return WriteState.EMPTY

    def _coalesced(self, data: bytes, fds: Sequence[int]) -> tuple[bytes, Sequence[int]]:
        queue = self._queue
        chunks = [data]
        size = len(data)
        while queue and size < _BATCH_BYTES:
            # A receiver that has lost descriptors assigns the descriptors of a read to the frames after its RESTART. If
            # frames with descriptors preceded the RESTART in the same write, a later frame would show their content.
            # tests/_wire/test_send_buffer.py::test_what_is_sent_again_takes_no_descriptor_of_what_is_skipped
            if fds and queue[0] is _RESTART:
                break
            sent = queue.popleft()
            if not isinstance(sent, bytes):
                sent, more, _ = sent
                if len(fds) + len(more) > MAX_FDS_PER_CALL:
                    queue.appendleft((sent, more, 0))
                    break
                fds = [*fds, *more]
            chunks.append(sent)
            size += len(sent)
        return b"".join(chunks), fds

    def take_callbacks(self) -> Sequence[Callable[[], None]]:
        callbacks = self.callbacks
        if not callbacks:
            return ()
        due = []
        while callbacks and callbacks[0][0] <= self._sent_bytes:
            due.append(callbacks.popleft()[1])
        return due

    def stop(self) -> None:
        """Stop sending and calling back; keep the unacknowledged frames."""
        self._queue.clear()
        self.callbacks.clear()
        self.nbytes = 0

    def drop(self) -> None:
        """Stop sending, and drop the kept frames."""
        self.stop()
        self.kept.drop()


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
