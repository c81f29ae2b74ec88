"""Retransmission state: unacknowledged frames at the sender, dropped descriptors at the receiver."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rlinf_async._core import frames, resend
from rlinf_async._core.frames import FrameError, pack, unpack
from rlinf_async._core.resend import Incoming, Unacknowledged, pieces
from rlinf_async._core.segment import write_segment


@pytest.fixture
def opened() -> Iterator[list[int]]:
    """Descriptors of segments that say which one they are."""
    fds = [write_segment([bytes([number]) * 8], 8) for number in range(6)]
    yield fds
    for fd in fds:
        if is_open(fd):
            os.close(fd)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def message(number: int, size: int = 8) -> list[object]:
    return [frames.MESSAGE, 1, 7, 0, [number], size]


def test_what_is_acknowledged_is_closed_and_the_rest_is_sent_again(opened: list[int]) -> None:
    kept = Unacknowledged()
    for number, fd in enumerate(opened[:4]):
        kept.add((pack(message(number)), [fd], 8))
    kept.acknowledge(1)
    assert [is_open(fd) for fd in opened[:4]] == [False, True, True, True]
    assert [unpack(data)[4] for data, _, _ in kept.since(2)] == [[2], [3]]
    assert [frame[4] for frame, _ in kept.take(3)] == [[3]]
    assert len(kept) == 0


def test_more_than_was_sent_cannot_be_acknowledged() -> None:
    kept = Unacknowledged()
    kept.add_plain(b"")
    with pytest.raises(FrameError, match="2 frames were acknowledged, and 1 sent"):
        kept.acknowledge(2)


def test_plain_frames_that_are_not_acknowledged_yet_are_sent_again() -> None:
    kept = Unacknowledged()
    for number in range(3):
        kept.add_plain(pack(message(number)))
    kept.acknowledge(1)
    assert [unpack(data)[4] for data, _, _ in kept.since(1)] == [[1], [2]]
    kept.acknowledge(3)
    assert len(kept) == 0


def test_beyond_the_limit_the_oldest_contents_are_forfeited_and_their_frames_say_so(
    opened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resend, "MAX_KEPT_BYTES", 20)
    kept = Unacknowledged()
    for number, fd in enumerate(opened[:4]):
        kept.add((pack([frames.REPLY, 1, 0, 0, number, 0, 0, 8]), [fd], 8))
    assert kept.is_too_much
    kept.forfeit()
    assert not kept.is_too_much
    taken = kept.take(0)
    assert [fds for _, fds in taken] == [(), (), [opened[2]], [opened[3]]]
    assert "the call has finished, but its result" in taken[0][0][-1]


def receive(incoming: Incoming, *read: object, fds: list[int] | None = None, truncated: bool = False) -> list[object]:
    """One read: the numbers of the messages that it brings to their handler, with what they carry."""
    if fds or truncated:
        incoming.add_fds(fds or [], truncated=truncated)
    found = [incoming.take(frame) for frame in read]  # type: ignore[arg-type]
    told = incoming.end_read()
    handled: list[object] = []
    for frame, rights in filter(None, found):
        for fd in rights:
            handled.append((frame[4][0], os.pread(fd, 1, 0)[0]))
            os.close(fd)
        if not rights:
            handled.append((frame[4][0], frame[-1][0]))
    return [*handled, *(["start again"] if told else [])]


def test_no_frame_takes_the_descriptor_of_a_later_one(opened: list[int]) -> None:
    incoming = Incoming()
    # three frames in one write, of whose descriptors the kernel has handed out one; then a write that has its own
    assert receive(incoming, message(0), message(1), fds=[opened[0]], truncated=True) == [(0, 0), "start again"]
    assert receive(incoming, message(2)) == []
    assert receive(incoming, message(3), fds=[opened[3]]) == []
    assert incoming.received == 1
    again = [[frames.RESTART, 0]]
    for number in (1, 2, 3):
        again += [[frames.PIECE, 0, bytes([number]) * 8], message(number)]
    # what is new follows in the same read, and brings its descriptor
    assert receive(incoming, *again, message(4), fds=[opened[4]]) == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert incoming.received == 5
    assert receive(incoming, message(5), fds=[opened[5]]) == [(5, 5)]
    assert not incoming.is_strict


def test_a_loss_is_noticed_when_the_frame_that_it_concerns_is_complete(opened: list[int]) -> None:
    incoming = Incoming()
    assert receive(incoming, truncated=True) == []
    assert receive(incoming, fds=[opened[1]]) == []
    with pytest.raises(OSError, match="Bad file descriptor"):  # it belongs to no frame, and is closed
        os.fstat(opened[1])
    assert receive(incoming, message(0), message(1)) == ["start again"]
    assert receive(incoming, message(2)) == []


def test_a_loss_while_it_starts_again_is_a_loss_of_what_follows(opened: list[int]) -> None:
    incoming = Incoming()
    assert receive(incoming, message(0), truncated=True) == ["start again"]
    again = [[frames.RESTART, 0], [frames.PIECE, 0, bytes(8)], message(0)]
    assert receive(incoming, *again, message(1), truncated=True) == [(0, 0), "start again"]


def test_a_frame_without_its_descriptor_is_no_frame_where_none_was_lost() -> None:
    with pytest.raises(FrameError, match="without its file descriptors"):
        Incoming().take(message(0))  # type: ignore[arg-type]


def test_a_socket_that_rides_on_a_frame_counts_no_bytes() -> None:
    assert resend.content_bytes(message(0, 9)) == 9
    assert resend.content_bytes([frames.MESSAGE, 1, 7, 0, [0], None]) == 0


def test_pieces_are_the_content_and_a_socket_has_none(opened: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resend, "PIECE_BYTES", 3)
    data = pack(message(1))
    assert [unpack(piece)[-1] for piece in pieces(data, [opened[1]], 8)] == [b"\1" * 3, b"\1" * 3, b"\1" * 2, 8]
    assert [unpack(piece)[-1] for piece in pieces(pack((frames.DIRECT, 1, 0, 9)), [opened[1]], 0)] == [None, 9]


@pytest.mark.parametrize("nbytes", [8, 0], ids=["memory", "socket"])
def test_what_came_without_its_descriptor_is_acknowledged_soon_too(opened: list[int], nbytes: int) -> None:
    incoming = Incoming()
    frame: list[object] = message(1) if nbytes else [frames.DIRECT, 1, 0, 9]
    incoming.add_fds([], truncated=True)
    assert incoming.take(list(frame)) is None
    sent_again = [pack((frames.RESTART, 0)), *pieces(pack(frame), [opened[1]], nbytes)]
    taken = [incoming.take(unpack(piece)) for piece in sent_again][-1]
    assert taken is not None
    assert taken[1] == []
    assert incoming.descriptors


def test_what_does_not_fill_its_frame_is_refused() -> None:
    incoming = Incoming()
    incoming.take([frames.PIECE, 0, bytes(7)])
    with pytest.raises(FrameError, match="pieces of 7 bytes, and their frame speaks of 8"):
        incoming.take(message(0))  # type: ignore[arg-type]


def test_a_content_that_no_memory_can_hold_is_lost_alone() -> None:
    incoming = Incoming()
    incoming.take([frames.PIECE, 0, bytes(7)])
    frame, fds = incoming.take([*message(0)[:-1], 1 << 50])  # type: ignore[misc]
    assert (frame[1], frame[-1], fds) == (0, f"there is no memory for its {1 << 50} bytes", [])
    assert incoming.received == 1


def test_an_acknowledgement_rides_along_and_is_sent_alone_only_when_much_waits_for_it(opened: list[int]) -> None:
    incoming = Incoming()
    incoming.received = resend.ACK_FRAMES - 1
    assert not incoming.owes()
    assert not incoming.is_due
    incoming.received += 1
    assert not incoming.owes()
    assert incoming.is_due
    assert incoming.acknowledge() == (frames.ACK, 0, resend.ACK_FRAMES, frames.OF_THIS)
    assert not incoming.is_due
    assert incoming.look_at == 2 * resend.ACK_FRAMES
    incoming.received += resend.ACK_NOW_FRAMES
    assert incoming.owes()
    incoming.acknowledge()
    receive(incoming, message(0), fds=[opened[0]])
    assert not incoming.owes()
    assert incoming.is_due
    assert incoming.descriptors


@pytest.mark.parametrize(
    ("frame", "owes"),
    [
        (message(0, resend._ACK_NOW_BYTES), True),
        (message(0, resend._ACK_NOW_BYTES - 1), False),
        ([frames.MESSAGE, 1, 7, 0, [0], "it is lost"], False),
        ([frames.DIRECT, 1, 0, resend._ACK_NOW_BYTES], False),  # an address, and a socket
    ],
)
def test_much_memory_that_has_come_is_acknowledged_at_once(opened: list[int], frame: list[object], owes: bool) -> None:
    incoming = Incoming()
    incoming.add_fds([opened[0]], truncated=False)
    incoming.take(frame)
    assert incoming.owes() == owes
