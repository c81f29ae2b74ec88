"""Retransmission state of a socket: the sender's unacknowledged frames; the receiver's counts, losses and ACKs.

A socket may lose frames: it may break while both ends are alive, or its receiver may have no free descriptor, in which
case the kernel drops arriving descriptors. Both ends therefore count frames, from 1; control frames (ACK, RESTART,
PIECE) are not counted::

    sender                                      receiver
    kept.add((data, fds, nbytes))               incoming.received += 1
    kept.acknowledge(7)  ◄──── ACK 7 ────────   rides on the next frame, or follows soon
    kept.since(7)        ◄──── ACK 7, lost ──   descriptors of frame 8 were dropped; later frames are skipped
                         ───── RESTART ─────►   continues with frame 8
                         ── PIECE … frame 8 ►   its content, as bytes

``_wire/socket_writer.py`` does the sending. When a direct socket ends, the frames returned by ``take`` go through the
daemon.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rlinf_async._core import frames
from rlinf_async._core.frames import Frame, FrameError, pack, unpack
from rlinf_async._core.segment import close_fds

# Limit on kept content; above it, the oldest content is given up before another frame is sent.
MAX_KEPT_BYTES: Final = 64 << 20

_MAX_KEPT_DESCRIPTORS: Final = 256  # content is also given up above this limit

PIECE_BYTES: Final = 256 * 1024
# Number of unacknowledged frames from which the next frame sent back carries an ACK.
ACK_FRAMES: Final = 64

# Limits at which an ACK is sent immediately and by itself, because the sender keeps everything until the ACK arrives.
ACK_NOW_FRAMES: Final = 4096
_ACK_NOW_BYTES: Final = MAX_KEPT_BYTES // 2
_ACK_NOW_DESCRIPTORS: Final = 8

_CARRIES: Final = {
    frames.CALL: "these arguments",
    frames.REPLY: "the call has finished, but its result",
    frames.MESSAGE: "this message",
    frames.PUT: "this item",
    frames.GIVE: "this item",
}


FrameWithFds = tuple[bytes, Sequence[int], int]  # packed frame, its descriptors, their content's size in bytes

# A packed frame, in a tuple only if it has descriptors: thousands of frames are kept, and the garbage collector visits
# every tuple.
Sent = bytes | FrameWithFds


def with_fds(sent: Sent) -> FrameWithFds:
    return (sent, (), 0) if isinstance(sent, bytes) else sent


class Unacknowledged:
    """The frames that a sender may have to send again.

    ``add`` takes over the descriptors, which are closed once the frame is acknowledged.

    Attributes:
        acknowledged: number of frames acknowledged by the receiver.
        add_plain: function that appends a packed frame without descriptors.
    """

    __slots__ = ("_content", "_descriptors", "_frames", "acknowledged", "add_plain")

    def __init__(self) -> None:
        self._frames: deque[Sent] = deque()
        self.add_plain: Callable[[bytes], None] = self._frames.append
        self._content = self._descriptors = 0
        self.acknowledged = 0

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, sent: FrameWithFds) -> None:
        self._frames.append(sent)
        self._count(sent[1], sent[2])

    def acknowledge(self, received: int) -> None:
        """Drop the first ``received`` frames; FrameError if fewer were sent."""
        kept = len(self._frames)
        if received - self.acknowledged > kept:
            raise FrameError(f"{received} frames were acknowledged, and {self.acknowledged + kept} sent")
        if not self._descriptors and received - self.acknowledged == kept:
            self._frames.clear()
            self.acknowledged = received
        while self.acknowledged < received:
            sent = self._frames.popleft()
            self.acknowledged += 1
            if not isinstance(sent, bytes):
                _, fds, nbytes = sent
                self._count(fds, -nbytes, -1)
                close_fds(fds)

    def _count(self, fds: Sequence[int], nbytes: int, sign: int = 1) -> None:
        self._content += nbytes
        self._descriptors += sign * len(fds)

    @property
    def is_too_much(self) -> bool:
        """True if content must be given up before more is sent."""
        return self._content > MAX_KEPT_BYTES or self._descriptors > _MAX_KEPT_DESCRIPTORS

    def since(self, received: int) -> Iterator[FrameWithFds]:
        """Return the frames after the first ``received`` frames, to be sent again. The frames stay kept."""
        self.acknowledge(received)
        return map(with_fds, list(self._frames))

    def take(self, received: int) -> list[tuple[list[Any], Sequence[int]]]:
        """Remove and return the frames after the first ``received``, unpacked; the caller closes their descriptors."""
        self.acknowledge(received)
        taken = [(unpack(data), fds) for data, fds, _ in map(with_fds, self._frames)]
        self._frames.clear()
        self._content = self._descriptors = 0
        return taken

    def drop(self) -> None:
        for _, fds, _ in map(with_fds, self._frames):
            close_fds(fds)
        self._frames.clear()
        self._content = self._descriptors = 0

    def forfeit(self) -> None:
        """Replace the oldest contents with error texts until the limits are met.

        Otherwise a stalled receiver could exhaust memory. All kept frames must have been sent, because a descriptor
        that is closed here cannot be sent later.
        """
        for place in range(len(self._frames)):
            data, fds, nbytes = with_fds(self._frames[place])
            frame = unpack(data) if fds else []
            if fds and frame[0] in _CARRIES:
                frame[1], frame[-1] = 0, lost_text(frame[0], nbytes)
                self._frames[place] = pack(frame)
                self._count(fds, -nbytes, -1)
                close_fds(fds)
                if not self.is_too_much:
                    return


class Incoming:
    """The receiver's side: assigns descriptors to frames, and decides when to acknowledge.

    Attributes:
        received: number of received frames.
        acknowledged: number of acknowledged frames.
        descriptors: number of descriptors that the sender keeps open only until the next acknowledgement.
        look_at: number of received frames from which the caller must check ``owes``; if ``descriptors`` is not 0, the
            caller must check it at once.
        is_strict: True if the next frame must pass through ``take``, because descriptors are waiting, were lost, or
            arrive in pieces.
        is_due: True if the next frame that is sent must carry an acknowledgement.
        read_bytes: total bytes read from the socket, counted by the caller.
    """

    __slots__ = (
        "_acknowledged_bytes",
        "_content",
        "_fds",
        "_is_acknowledged",
        "_is_skipping",
        "_lost_now",
        "_pieces",
        "_was_truncated",
        "acknowledged",
        "descriptors",
        "is_due",
        "is_strict",
        "look_at",
        "read_bytes",
        "received",
    )  # fmt: skip

    def __init__(self) -> None:
        self.received = 0
        self.look_at = ACK_FRAMES
        self.read_bytes = self._acknowledged_bytes = 0
        self.is_strict = False
        self.is_due = False
        self.acknowledged = 0
        self._content = 0
        self.descriptors = 0
        self._fds: deque[int] = deque()
        self._lost_now = False  # True if descriptors of the current read were lost
        self._was_truncated = False
        self._is_skipping = self._is_acknowledged = False
        self._pieces: list[bytes] | None = None

    def add_fds(self, fds: Sequence[int], *, truncated: bool) -> None:
        """Add the descriptors of one read, before its frames are passed to ``take``.

        If too few descriptors are free, the kernel delivers the first descriptors of a write and drops the rest. The
        delivered ones belong to the next frames, in order. After a loss, no descriptor is assigned until the sender
        starts again; otherwise a frame could get a later frame's descriptor and show its content. One read never
        extends past a write with descriptors, so if it contains a RESTART, the descriptors belong to the frames after
        the RESTART.

        tests/_core/test_resend.py::test_no_frame_takes_the_descriptor_of_a_later_one
        tests/_core/test_resend.py::test_a_loss_while_it_starts_again_is_a_loss_of_what_follows
        """
        if self._was_truncated and not self._is_skipping:
            close_fds(fds)
        else:
            self._fds.extend(fds)
        self._lost_now = truncated
        self._was_truncated = self._was_truncated or truncated
        self.is_strict = True

    def take(self, frame: list[Any]) -> tuple[list[Any], list[int]] | None:
        """Return a frame other than an ACK, with its descriptors; None if the caller must ignore the frame.

        Raises:
            FrameError: the frame came without its descriptors, although none were lost.
        """
        kind = frame[0]
        if kind == frames.RESTART:
            self._is_skipping = self._is_acknowledged = False
            self._was_truncated = self._lost_now
            self._pieces = None
            return None
        if self._is_skipping:
            return None
        if kind == frames.PIECE:
            self.is_strict = True
            self._pieces = self._pieces or []
            if frame[2] is not None:
                self._pieces.append(frame[2])
            return None
        count = frame[1]
        fds: list[int] = []
        if count and self._pieces is None and count > len(self._fds):
            if not self._was_truncated:
                raise FrameError("a frame came without its file descriptors")
            self._is_skipping = True
            return None
        if count:
            # Also count descriptors that came as pieces: the sender keeps its copies open until this ACK, and the peer
            # of an undelivered socket sees end-of-file only when all copies are closed.
            self._content += content_bytes(frame)
            if self._pieces is not None:
                _substitute(frame, self._pieces)
                self._pieces = None
            else:
                fds = [self._fds.popleft() for _ in range(count)]
        self.received += 1
        # Increment ``received`` before ``descriptors``: an ACK that another thread sends at this point resets
        # ``descriptors``, so it must already cover this frame.
        self.descriptors += count
        return frame, fds

    def end_read(self) -> bool:
        """Finish one read. Return True if the sender must be asked to restart."""
        self._lost_now = False
        if self._is_skipping:
            close_fds(self._fds)
            self._fds.clear()
            tell, self._is_acknowledged = not self._is_acknowledged, True
            return tell
        self.is_strict = bool(self._fds) or self._was_truncated or self._pieces is not None
        return False

    def owes(self) -> bool:
        """True if an acknowledgement must be sent now; sets ``is_due`` if it may wait for the next frame."""
        frames_behind = self.received - self.acknowledged
        if (
            frames_behind >= ACK_NOW_FRAMES
            or self.read_bytes - self._acknowledged_bytes + self._content >= _ACK_NOW_BYTES
            or self.descriptors >= _ACK_NOW_DESCRIPTORS
        ):
            return True
        self.is_due = bool(self.descriptors) or frames_behind >= ACK_FRAMES
        return False

    def acknowledge(self, about: int = frames.OF_THIS) -> Frame:
        self.is_due = False
        self._content = self.descriptors = 0
        self._acknowledged_bytes = self.read_bytes
        self.acknowledged = self.received
        self.look_at = self.received + ACK_FRAMES
        return frames.ACK, 0, self.acknowledged, about

    def drop(self) -> None:
        close_fds(self._fds)
        self._fds.clear()


def pieces(data: bytes, fds: Sequence[int], nbytes: int) -> Iterator[bytes]:
    """Yield a packed frame without descriptors: first its content in pieces, then the frame. A socket is omitted."""
    if fds and not nbytes:
        yield pack((frames.PIECE, 0, None))
    for offset in range(0, nbytes, PIECE_BYTES):
        yield pack((frames.PIECE, 0, os.pread(fds[0], min(PIECE_BYTES, nbytes - offset), offset)))
    yield data


def _substitute(frame: list[Any], content: list[bytes]) -> None:
    frame[1] = 0
    if not content:  # a socket cannot be sent as bytes
        return
    try:
        memory = memoryview(bytearray(frame[-1]))
    except MemoryError:
        frame[-1] = f"there is no memory for its {frame[-1]} bytes"
        return
    offset = 0
    for piece in content:
        if offset + len(piece) > len(memory):
            raise FrameError(f"pieces of more than the {len(memory)} bytes that their frame speaks of")
        memory[offset : offset + len(piece)] = piece
        offset += len(piece)
    if offset != len(memory):
        raise FrameError(f"pieces of {offset} bytes, and their frame speaks of {len(memory)}")
    frame[-1] = memory


def content_bytes(frame: Frame) -> int:
    """Return the size of the memory whose descriptor is sent with a frame; 0 for a socket."""
    return frame[-1] if frame[0] in _CARRIES and type(frame[-1]) is int else 0


def lost_text(kind: int, nbytes: int) -> str:
    return (
        f"{_CARRIES[kind]} of {nbytes / (1 << 20):.1f} MiB was lost with the socket between the two processes: more "
        f"than {MAX_KEPT_BYTES >> 20} MiB, or {_MAX_KEPT_DESCRIPTORS} contents, had been sent there and not received"
    )
