"""Send buffer of one socket: writes packed frames with descriptors, in batches, and keeps them until acknowledged.

Not safe for threads; its owner holds a lock::

    buffer.add(data, fds, nbytes, on_sent)
    state = buffer.write_to(sock)               # writes until nothing is left or the socket takes no more
    for callback in buffer.take_callbacks():    # without the lock: it is other people's code
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
"""Descriptors that go with one system call; a receiver takes each when it comes to the frame that it belongs to."""
_BATCH_BYTES: Final = 256 * 1024
_RESTART: Final = frames.pack((frames.RESTART, 0))

# As a plain number: the enum members of `socket` cost microseconds in arithmetic.
_NOSIGNAL: Final = int(socket.MSG_NOSIGNAL)

PASSING: Final = frozenset((errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM))
"""What a socket says that will take the same bytes a moment later: too many descriptors under way, no memory."""

RETRY_S: Final = 0.005
"""After which a kernel that was short of something is asked again."""


class State(Enum):
    EMPTY = "everything has left"
    FULL = "the socket takes no more for now, and says when it does"
    SHORT = "the kernel is short of something, and does not say when it no longer is"
    GONE = "the other end is gone"


class SendBuffer:
    """Packed frames that wait to be written, in order.

    Attributes:
        nbytes: of what has been added and has not left.
        kept: what the other side may not have, with its descriptors.
        callbacks: of frames that have not been sent, by the bytes that have to be sent in all before each is called.
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
        """Appends a packed frame, and keeps it until it is acknowledged; then its descriptors are closed.

        Args:
            nbytes: of the content that the descriptors carry.
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
        """As ``add``, of a frame on which nothing rides."""
        self.kept.add_plain(data)
        self._queue.append(data)
        self.nbytes += len(data)

    def add_control(self, data: bytes) -> None:
        """Appends what is not kept."""
        self._queue.append(data)
        self.nbytes += len(data)

    def restart(self, received: int) -> None:
        """Sends everything again after the first ``received`` frames, without descriptors.

        What is in the queue stays there: part of it may have left, and the other side skips it.

        Raises:
            FrameError, OSError: that cannot be.
        """
        self.add_control(_RESTART)
        for data, fds, nbytes in self.kept.since(received):
            for piece in pieces(data, fds, nbytes):
                self.add_control(piece)

    def write_to(self, sock: socket.socket) -> State:
        """Writes what the socket takes, in as few system calls as the descriptors allow."""
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
                return State.FULL
            except OSError as error:
                queue.appendleft((data, fds, 0))
                return State.SHORT if error.errno in PASSING else State.GONE
            self.nbytes -= written
            self._sent_bytes += written
            if written < len(data):
                queue.appendleft((data[written:], fds, 0))
                return State.FULL
        return State.EMPTY

    def _coalesced(self, data: bytes, fds: Sequence[int]) -> tuple[bytes, Sequence[int]]:
        queue = self._queue
        chunks = [data]
        size = len(data)
        while queue and size < _BATCH_BYTES:
            # A receiver that has lost descriptors takes those of one read to belong to the frames behind a RESTART in
            # it. If frames with descriptors left before the RESTART in the same write, a later frame would show the
            # content of one of these.
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
        """The callbacks of frames that have been sent."""
        callbacks = self.callbacks
        if not callbacks:
            return ()
        due = []
        while callbacks and callbacks[0][0] <= self._sent_bytes:
            due.append(callbacks.popleft()[1])
        return due

    def stop(self) -> None:
        """Sends nothing more, and calls nothing back; what is kept stays."""
        self._queue.clear()
        self.callbacks.clear()
        self.nbytes = 0

    def drop(self) -> None:
        """As ``stop``, and nothing is kept."""
        self.stop()
        self.kept.drop()


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
