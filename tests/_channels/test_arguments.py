"""Arguments of channel requests: every accepted one fits into a frame."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st

from rlinf_async._channels.arguments import RequestArguments
from rlinf_async._channels.state.channel_keys import MAX_KEY_BYTES
from rlinf_async._core import frames
from rlinf_async._core.argument_checks import MAX_INTEGER
from rlinf_async._core.codec import encode_plain
from rlinf_async._core.payload import pack_body
from rlinf_async._wire.socket_writer import MAX_FRAME_BYTES

numbers = st.integers() | st.sampled_from(
    [MAX_INTEGER, MAX_INTEGER + 1, 2**64, -(2**63), np.int64(3), np.float32(3), True, None, "3"]
)
times = st.none() | st.floats() | st.sampled_from([0, 1, np.float64(2), 10**400, "1", [1]])
keys = st.sampled_from(
    [None, "k", 2**70, -(2**63), 1.5, math.nan, b"\0", (1, "a"), frozenset([1]), "x" * (MAX_KEY_BYTES - 1)]
)


@given(
    weight=numbers, timeout=times, key=keys, item=st.binary(max_size=5) | st.just(bytes(frames.MAX_INLINE_BYTES - 20))
)
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_whatever_becomes_a_wish_fits_into_a_frame(weight: Any, timeout: Any, key: Any, item: bytes) -> None:
    requests = RequestArguments("obs", None)
    number = 2**53
    sent: list[Any] = []
    try:
        put = requests.put(item, weight, key, timeout)
        body, fds = pack_body(put.carried)
        assert not fds
        sent.append((frames.PUT, 0, number, number, number, number, put.key, put.weight, put.mode, body))
    except (TypeError, ValueError):
        pass
    for make in (requests.get, lambda key, timeout: requests.get_batch(weight, key, timeout)):
        try:
            get = make(key, timeout)
        except (TypeError, ValueError):
            continue
        sent.append((frames.GET, 0, number, number, number, number, get.key, get.target, None))
        assert frames.demand_of(get.target).get("nowait", False) == (timeout == 0)
    for wait in (True, False):
        try:
            many = requests.get_many(weight, key, wait, timeout)
        except (TypeError, ValueError):
            continue
        sent.append((frames.GET, 0, number, number, number, number, many.key, many.target, None))
        demand = frames.demand_of(many.target)
        assert demand == {
            "target": int(weight),
            "counted": True,
            "nowait": timeout == 0 or not wait,
            "partly": not wait,
        }
    for frame in sent:
        packed = frames.pack(frame)
        assert len(packed) < MAX_FRAME_BYTES / 32  # so that many fit into one
        assert frames.FrameReader().feed(packed) == [list(frame)]


def test_a_plain_put_is_encoded_once_and_by_its_own_bytes() -> None:
    put = RequestArguments("obs", None).put({"a": 1}, 3, "key", None)
    assert (put.weight, put.carried, put.mode) == (3, encode_plain({"a": 1}), frames.WAIT)
    assert RequestArguments("obs", None).put(1, 0, "key", 0).mode == frames.NOWAIT
    item = object()
    assert RequestArguments("obs", 0).put(item, 0, "key", None).carried is item
