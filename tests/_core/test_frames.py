"""Frames: routes, streams of bytes, malformed bytes."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, strategies as st

from rlinf_async._core import frames
from rlinf_async._core.frames import FrameError, FrameReader, endpoint, node_of, number_of, route_to
from rlinf_async._wire.socket_writer import MAX_FRAME_BYTES

CALL = (frames.CALL, 0, 1, [[0, [1, 0]]], 7, "step", 0, b"body")
CANCEL = (frames.CANCEL, 0, 1, [[0, [1, 0]]], 7)


@given(st.integers(0, 2**20), st.integers(0, 2**32 - 1))
def test_an_endpoint_says_its_node_and_number(node: int, number: int) -> None:
    assert (node_of(endpoint(node, number)), number_of(endpoint(node, number))) == (node, number)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50)), unique=True, max_size=20))
def test_a_route_names_every_target_once_with_its_slot(targets: list[tuple[int, int]]) -> None:
    ids = [endpoint(node, number) for node, number in targets]
    slots = {}
    for node, pairs in route_to(ids):
        for number, slot in zip(pairs[::2], pairs[1::2], strict=True):
            slots[slot] = endpoint(node, number)
    assert slots == dict(enumerate(ids))
    assert len({node for node, _ in route_to(ids)}) == len(route_to(ids))


def test_what_a_get_wants_is_read_or_refused() -> None:
    some = {"target": 7, "counted": True}
    for target, meaning in (
        (None, {}),
        (frames.NOW, {"nowait": True}),
        (0, {"target": 0}),
        (7, {"target": 7}),
        ([7], {"target": 7, "nowait": True}),
        ([0], {"target": 0, "nowait": True}),
        ([7, frames.WAIT], {**some, "partly": False, "nowait": False}),
        ([7, frames.NOWAIT], {**some, "partly": False, "nowait": True}),
        ([7, frames.SOME], {**some, "partly": True, "nowait": True}),
        ([7, frames.READ], {**some, "partly": True, "shared": False, "stepwise": True}),
        ([7, frames.READ_SHARED], {**some, "partly": True, "shared": True, "stepwise": True}),
        ([7, frames.LEASE, 2.5], {**some, "lease_s": 2.5}),
    ):
        assert frames.demand_of(target) == meaning
    no_counts: list[Any] = [[0, frames.SOME], [-1, 0], [1, 5], [1, -1], [1, True], [1, "2"], [1, 0, 0]]
    no_counts += [[1, frames.LEASE, 1], [1, frames.LEASE, -0.5], [1, frames.READ, 1.0], [0, frames.LEASE, 1.0]]
    for nonsense in (-2, -3, True, 1.5, "7", [], [-1], [1.5], [0, frames.READ], {"weight": 1}, *no_counts):
        with pytest.raises(TypeError, match="a get with target"):
            frames.demand_of(nonsense)


@given(st.lists(st.sampled_from([CALL, CANCEL]), max_size=10), st.integers(1, 50))
def test_a_stream_cut_anywhere_gives_the_same_frames(sent: list[tuple[object, ...]], size: int) -> None:
    data = b"".join(frames.pack(frame) for frame in sent)
    reader = FrameReader()
    got = [frame for start in range(0, len(data), size) for frame in reader.feed(data[start : start + size])]
    assert got == [list(frame) for frame in sent]


@pytest.mark.parametrize(
    "value",
    [
        "text",
        17,
        [],
        [99, 0, 0],
        [frames.CALL, 0],
        [frames.CANCEL, -1, 0, 0, 0],
        [frames.CANCEL, 5, 0, 0, 0],
        [frames.CANCEL, "x", 0, 0, 0],
        [[1], 0, 0, 0, 0],
        {"a": 1},
    ],
)
def test_what_is_no_frame_is_refused(value: object) -> None:
    with pytest.raises(FrameError):
        FrameReader().feed(msgpack.packb(value))


def test_extension_types_are_refused() -> None:
    with pytest.raises(FrameError):
        FrameReader().feed(msgpack.packb([frames.CANCEL, 0, 0, msgpack.ExtType(1, b"x"), 0]))


@pytest.mark.parametrize("bomb", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x91" * 5000])
def test_a_length_that_promises_memory_is_refused_without_it(bomb: bytes) -> None:
    with pytest.raises(FrameError):
        FrameReader().feed(bomb)


def test_a_text_that_may_be_sent_is_read() -> None:
    frame = (frames.CALL, 0, 1, 0, 7, "x" * (MAX_FRAME_BYTES - 100), 0, b"")
    assert FrameReader().feed(frames.pack(frame)) == [list(frame)]


def test_a_body_that_does_not_end_is_refused_after_a_bounded_wait() -> None:
    reader = FrameReader(limit=1 << 20)
    reader.feed(b"\x95\x03\x00\x01\xc6\x7f\xff\xff\xff")
    reader.feed(bytes(512 << 10))
    with pytest.raises(FrameError):
        reader.feed(bytes(768 << 10))


@given(st.binary(max_size=200))
def test_random_bytes_end_in_frames_or_a_frame_error(data: bytes) -> None:
    try:
        FrameReader().feed(data)
    except FrameError:
        pass


@given(st.text(st.characters(exclude_categories=())))
def test_any_string_travels(text: str) -> None:
    assert frames.unpack(frames.pack(text)) == text
    frame = [frames.ANSWER, 0, 1, 2, 3, True, text]
    assert FrameReader().feed(frames.new_packer().pack(frame)) == [frame]


def test_plain_data_survives_packing() -> None:
    value = {"a": [1, 2.5, None, "x", b"y"], "b": {"c": True}}
    assert frames.unpack(frames.pack(value)) == value
    with pytest.raises(FrameError):
        frames.unpack(b"\xc1")


def test_a_connection_begins_with_small_buffers() -> None:
    tracemalloc.start()
    try:
        kept = FrameReader(), frames.new_packer()
        assert len(kept) == 2
        assert tracemalloc.get_traced_memory()[0] < 64 * 1024
    finally:
        tracemalloc.stop()
