"""Inline links: pieces within frames, a window, discards."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from rlinf_async._transports.inline import PIECE_BYTES, InlineLink
from rlinf_async.errors import TransferFailed


class Wire:
    """Two links, and what they have posted to each other and is not delivered yet."""

    def __init__(self) -> None:
        self.posted: list[deque[Any]] = [deque(), deque()]
        self.links = [InlineLink(self.posted[side].append, side == 0) for side in (0, 1)]
        self.most = 0

    def deliver(self, most: int = 1_000_000) -> None:
        for _ in range(most):
            for side in (0, 1):
                if self.posted[side]:
                    pieces = sum(facts[0] == "piece" for facts in self.posted[side])
                    self.most = max(self.most, pieces)
                    self.links[1 - side].on_control(self.posted[side].popleft())
            if not any(self.posted):
                return


def buffers(*sizes: int) -> list[memoryview]:
    return [memoryview(bytes([index + 1]) * size) for index, size in enumerate(sizes)]


@pytest.mark.parametrize(
    "sizes", [(1,), (0,), (), (PIECE_BYTES,), (PIECE_BYTES + 1, 0, 3), (3 * PIECE_BYTES, 5 * PIECE_BYTES, 7), (0, 0, 9)]
)
@pytest.mark.parametrize("receiver_first", [True, False])
def test_buffers_arrive_whole_and_writable(sizes: tuple[int, ...], receiver_first: bool) -> None:
    wire = Wire()
    sent = buffers(*sizes)
    if receiver_first:
        receiving = wire.links[1].receive(7, sizes)
        wire.deliver()
        sending = wire.links[0].send(7, sent)
    else:
        sending = wire.links[0].send(7, sent)
        wire.deliver()
        assert sending.done() is (sum(sizes) == 0)
        receiving = wire.links[1].receive(7, sizes)
    wire.deliver()
    assert sending.wait(0) is None
    assert receiving.wait(0) == sent
    assert not any(buffer.readonly for buffer in receiving.wait(0))


def test_few_pieces_are_under_way_however_large_the_message() -> None:
    wire = Wire()
    sending = wire.links[0].send(1, buffers(100 * PIECE_BYTES))
    receiving = wire.links[1].receive(1, [100 * PIECE_BYTES])
    wire.deliver()
    assert sending.done()
    assert receiving.done()
    assert wire.most <= 8


def test_both_directions_at_once() -> None:
    wire = Wire()
    works = [wire.links[side].send(1, buffers(3 * PIECE_BYTES)) for side in (0, 1)]
    works += [wire.links[side].receive(1, [3 * PIECE_BYTES]) for side in (0, 1)]  # type: ignore[misc]
    wire.deliver()
    assert all(work.done() for work in works)


@pytest.mark.parametrize("side", [0, 1])
def test_what_is_discarded_fails_on_both_sides_and_the_next_one_goes_through(side: int) -> None:
    wire = Wire()
    sending = wire.links[0].send(1, buffers(20 * PIECE_BYTES))
    receiving = wire.links[1].receive(1, [20 * PIECE_BYTES])
    wire.deliver(3)
    wire.links[side].discard(ValueError("enough"))
    wire.deliver()
    mine, others = (sending, receiving) if side == 0 else (receiving, sending)
    with pytest.raises(ValueError, match="enough"):
        mine.wait(0)
    with pytest.raises(TransferFailed, match="the other worker gave it up: enough"):
        others.wait(0)
    again = wire.links[0].send(2, buffers(20))
    assert wire.links[1].receive(2, [20]).done() is False
    wire.deliver()
    assert again.done()


def test_one_transfer_is_discarded_and_the_others_arrive() -> None:
    wire = Wire()
    sent = [wire.links[0].send(number, buffers(20 * PIECE_BYTES)) for number in (1, 2)]
    received = [wire.links[1].receive(number, [20 * PIECE_BYTES]) for number in (1, 2)]
    wire.deliver(3)
    wire.links[0].discard(ValueError("enough"), 1)
    wire.deliver()
    for work, error in ((sent[0], ValueError), (received[0], TransferFailed)):
        with pytest.raises(error, match="enough"):
            work.wait(0)
    assert sent[1].done()
    assert received[1].wait(0) == buffers(20 * PIECE_BYTES)


def test_what_the_other_side_has_not_heard_of_is_not_discarded_there() -> None:
    wire = Wire()
    receiving = wire.links[1].receive(1, [10])
    wire.links[1].discard(ValueError("enough"))
    sending = wire.links[0].send(2, buffers(10))
    wire.deliver()
    assert not sending.done()
    second = wire.links[1].receive(2, [10])
    wire.deliver()
    assert sending.done()
    assert second.done()
    assert receiving.done()
