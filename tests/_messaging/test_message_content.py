"""Message content: its pickle is measured before a transport is chosen."""

from __future__ import annotations

import torch

from rlinf_async._messaging.message_content import encode


def test_a_pickle_that_does_not_fit_into_the_frame_is_known_before_a_way_is_chosen() -> None:
    assert encode({"weights": torch.zeros(1 << 20), "step": 3}, None).has_small_head
    assert not encode({"names": [str(number) for number in range(100_000)]}, None).has_small_head
    assert not encode(b"x" * 100_000, None).has_small_head
