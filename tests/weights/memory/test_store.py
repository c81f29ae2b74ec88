"""Number of slots, and errors where their memory is missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlinf_async import MultiProcessWeightSyncScheme
from rlinf_async.errors import ConfigError
from rlinf_async.weights import Publisher
from rlinf_async.weights.memory import slot


@pytest.mark.parametrize("slots", [1, 65, 100_000, "3"])
def test_a_number_of_slots_that_makes_no_sense_is_refused_where_it_is_read(slots: Any) -> None:
    with pytest.raises(ConfigError, match=f"slots= is at least 2, .* and at most 64; .* got {slots!r}"):
        MultiProcessWeightSyncScheme(slots=slots)


async def test_weights_for_which_there_is_not_enough_memory_are_an_error_before_any_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slot, "available", lambda: 100 << 20)
    async with Publisher({"w": torch.zeros(10 << 20)}, model_id="large", slots=3) as publisher:
        with pytest.raises(MemoryError, match=r"'large' take 3 slots of \d+ MiB, and 100 MiB of memory are available"):
            await publisher.connect(1.0)
        monkeypatch.setattr(slot, "available", lambda: 1 << 30)
        await publisher.connect(1.0)
