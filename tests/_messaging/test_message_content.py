"""Message content: its pickle is measured before a transport is chosen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlinf_async._messaging.exchange import _OBJECT_ACCEPTOR, _TensorAcceptor
from rlinf_async._messaging.message_content import Content, encode
from rlinf_async._messaging.state.matching import Message
from rlinf_async._messaging.state.message_facts import TENSOR


def test_a_pickle_that_does_not_fit_into_the_frame_is_known_before_a_way_is_chosen() -> None:
    assert encode({"weights": torch.zeros(1 << 20), "step": 3}, None).has_small_head
    assert not encode({"names": [str(number) for number in range(100_000)]}, None).has_small_head
    assert not encode(b"x" * 100_000, None).has_small_head


@pytest.mark.parametrize(
    "value", [7, "step", b"x" * 100_000, ["name"] * 10, [str(number) for number in range(100_000)]]
)
@pytest.mark.parametrize("piggyback", [None, 3])
def test_the_parts_for_a_link_are_the_value(value: Any, piggyback: Any) -> None:
    arrived = Content(*encode(value, piggyback).parts()).value()
    assert arrived == (value if piggyback is None else (value, piggyback))


@pytest.mark.parametrize(
    ("kind", "is_object"),
    [(encode(7, None).kind, True), (encode(7, 3).kind, True), (TENSOR, False)],
    ids=["object", "pair", "tensor"],
)
def test_a_receive_refuses_what_another_kind_of_send_has_sent(kind: int, is_object: bool) -> None:
    message = Message(1, kind, [["float32"], [2], "cpu"])
    refusal = _OBJECT_ACCEPTOR.refuses(message)
    assert (refusal is None) == is_object
    if is_object:
        assert "the peer has used send() there" in (_TensorAcceptor(torch.zeros(2), True).refuses(message) or "")
    else:
        assert "the peer has used send_tensor() there" in (refusal or "")
