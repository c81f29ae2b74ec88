"""Retransmission state of a socket: sender's unacknowledged frames; receiver's count, lost descriptors, ACKs due.

A socket may lose what was written to it: it breaks while both ends live, or its receiver has no descriptor free and the
kernel drops those that come.  So both ends count frames, from 1; control frames (ACK, RESTART, PIECE) do not count::

    sender                                      receiver
    kept.add((data, fds, nbytes))               incoming.received += 1
    kept.acknowledge(7)  ◄──── ACK 7 ────────   rides on the next frame, or follows soon
    kept.since(7)        ◄──── ACK 7, lost ──   descriptors of frame 8 were dropped: skips what follows
                         ───── RESTART ─────►   goes on with frame 8
                         ── PIECE … frame 8 ►   its content, as bytes

``_wire/socket_writer.py`` does the sending.  Where a direct socket ends, what ``take`` gives goes by way of the
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

MAX_KEPT_BYTES: Final = 64 << 20
"""Contents beyond this much are forfeited before another one is sent, the oldest first."""

_MAX_KEPT_DESCRIPTORS: Final = 256
"""Likewise."""

PIECE_BYTES: Final = 256 * 1024
ACK_FRAMES: Final = 64
"""Frames without an acknowledgement, from which on one rides on the next frame in the other direction; where none goes
there, one follows by itself from twice as many on."""

ACK_NOW_FRAMES: Final = 4096
_ACK_NOW_BYTES: Final = MAX_KEPT_BYTES // 2
_ACK_NOW_DESCRIPTORS: Final = 8
"""From one of these on it is sent at once: the sender holds that much memory only for want of it."""

_CARRIES: Final = {
    frames.CALL: "these arguments",
    frames.REPLY: "the call has finished, but its result",
    frames.MESSAGE: "this message",
    frames.PUT: "this item",
    frames.GIVE: "this item",
}


FrameWithFds = tuple[bytes, Sequence[int], int]
"""A packed frame, its descriptors, and the bytes of the content that they carry."""

Sent = bytes | FrameWithFds
"""A packed frame, by itself where nothing rides on it: thousands are kept, and the garbage collector visits tuples."""


def with_fds(sent: Sent) -> FrameWithFds:
    """A frame with what rides on it."""
    return (sent, (), 0) if isinstance(sent, bytes) else sent


class Unacknowledged:
    """The frames that a sender may have to send again.

    Descriptors given to ``add`` are closed here once the frame is acknowledged.

    Attributes:
        acknowledged: frames that the other side has.
        add_plain: appends a packed frame on which nothing rides.
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
        """Appends a frame with descriptors."""
        self._frames.append(sent)
        self._count(sent[1], sent[2])

    def acknowledge(self, received: int) -> None:
        """The other side has so many frames in all.

        Raises:
            FrameError: that is more than were sent.
        """
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
        """Whether contents are to be forfeited before more is sent."""
        return self._content > MAX_KEPT_BYTES or self._descriptors > _MAX_KEPT_DESCRIPTORS

    def since(self, received: int) -> Iterator[FrameWithFds]:
        """The frames that the other side lacks, which has so many; they stay kept."""
        self.acknowledge(received)
        return map(with_fds, list(self._frames))

    def take(self, received: int) -> list[tuple[list[Any], Sequence[int]]]:
        """As ``since``, unpacked, with the descriptors, for the caller to send and to close."""
        self.acknowledge(received)
        taken = [(unpack(data), fds) for data, fds, _ in map(with_fds, self._frames)]
        self._frames.clear()
        self._content = self._descriptors = 0
        return taken

    def drop(self) -> None:
        """Nothing of it is sent again."""
        for _, fds, _ in map(with_fds, self._frames):
            close_fds(fds)
        self._frames.clear()
        self._content = self._descriptors = 0

    def forfeit(self) -> None:
        """Gives up the oldest contents until the limit is kept, so that a receiver that stands still cannot fill the
        memory.  All of them must have left: a descriptor that is closed here could not be sent any more."""
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
    """The receiver's side: which descriptors belong to which frame, and when to acknowledge.

    Attributes:
        received: frames that have come.
        acknowledged: frames of which the sender has been told.
        descriptors: that the sender keeps open only for want of an acknowledgement.
        look_at: from so many frames on, and where there are ``descriptors``, ``owes`` is to be asked.
        is_strict: the next frame has to be looked at by ``take``: descriptors wait, were lost, or come in pieces.
        is_due: an acknowledgement rides on the next frame that is sent.
        read_bytes: of the socket, in all; the caller counts them.
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
        self._lost_now = False
        """The read that is being taken has lost descriptors."""
        self._was_truncated = False
        self._is_skipping = self._is_acknowledged = False
        self._pieces: list[bytes] | None = None

    def add_fds(self, fds: Sequence[int], *, truncated: bool) -> None:
        """What one read has brought beside its bytes, before its frames are taken.

        The kernel hands out the first descriptors of a write and drops the rest.  So those that are here belong to the
        next frames, in order, and after a loss none that comes later does, until the sender starts again: a frame that
        took the descriptor of a later one would show another frame's content.  One read never goes beyond a write that
        brings descriptors, so if it contains a RESTART they belong to what follows that.

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
        """A frame that is no ACK, with its descriptors; None where it is not to be handled.

        Raises:
            FrameError: it came without its descriptors, and none were lost.
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
            # Of descriptors that were left out as well: the sender keeps its own of them open until it hears of this,
            # and a socket that has not arrived ends for its other side only when nobody has it open.
            self._content += content_bytes(frame)
            if self._pieces is not None:
                _substitute(frame, self._pieces)
                self._pieces = None
            else:
                fds = [self._fds.popleft() for _ in range(count)]
        self.received += 1
        # In this order: an acknowledgement made meanwhile by another thread resets what it is thought to cover.
        self.descriptors += count
        return frame, fds

    def end_read(self) -> bool:
        """All of one read has been taken; True where the sender has to be told that it must start again."""
        self._lost_now = False
        if self._is_skipping:
            close_fds(self._fds)
            self._fds.clear()
            tell, self._is_acknowledged = not self._is_acknowledged, True
            return tell
        self.is_strict = bool(self._fds) or self._was_truncated or self._pieces is not None
        return False

    def owes(self) -> bool:
        """Whether an acknowledgement is to be sent now; ``is_due`` says whether it may wait for the next frame."""
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
        """The frame that says how much has come."""
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
    """A packed frame as it is sent without descriptors: its content before it, as bytes; a socket is left out."""
    if fds and not nbytes:
        yield pack((frames.PIECE, 0, None))
    for offset in range(0, nbytes, PIECE_BYTES):
        yield pack((frames.PIECE, 0, os.pread(fds[0], min(PIECE_BYTES, nbytes - offset), offset)))
    yield data


def _substitute(frame: list[Any], content: list[bytes]) -> None:
    """Has a frame carry bytes in the place of a descriptor."""
    frame[1] = 0
    if not content:  # a socket: it is not there
        return
    memory = memoryview(bytearray(frame[-1]))
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
    """Bytes of the memory whose descriptor rides on a frame; 0 of a socket."""
    return frame[-1] if frame[0] in _CARRIES and type(frame[-1]) is int else 0


def lost_text(kind: int, nbytes: int) -> str:
    """Why a frame has no content."""
    return (
        f"{_CARRIES[kind]} of {nbytes / (1 << 20):.1f} MiB was lost with the socket between the two processes: more "
        f"than {MAX_KEPT_BYTES >> 20} MiB, or {_MAX_KEPT_DESCRIPTORS} contents, had been sent there and not received"
    )
