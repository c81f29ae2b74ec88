"""Message content: its pickle is measured before a transport is chosen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlinf_async._messaging.message_content import Content, encode


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
