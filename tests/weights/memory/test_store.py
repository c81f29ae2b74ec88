"""Slots that versions are packed into, and errors where their memory is missing."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from rlinf_async import MultiProcessWeightSyncScheme
from rlinf_async.errors import ConfigError
from rlinf_async.weights import Manifest, ParamTree, Publisher
from rlinf_async.weights.memory import slot
from tests._support.weight_parts import SlotWriter, Store


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


def store_of(leaves: int, slots: int = 2) -> Store:
    """Of leaves of one number."""
    return Store(Manifest.of(ParamTree.of({str(leaf): torch.zeros(()) for leaf in range(leaves)})), slots)


def content(slot: SlotWriter) -> list[float]:
    return [float(value) for value in slot.views.values()]


@settings(deadline=None)
@given(st.data(), st.integers(2, 4), st.integers(1, 5))
def test_every_version_is_complete(data: st.DataObject, slots: int, leaves: int) -> None:
    truth = [0.0] * leaves
    with contextlib.closing(store_of(leaves, slots)) as store:
        for version in range(1, 8):
            read = [slot for slot in store._slots if slot is not store.latest and data.draw(st.booleans())]
            for each in read:
                each.pin()
            taken, latest = store.take(), store.latest
            assert taken is not latest
            assert taken not in read
            if version > 1 and data.draw(st.booleans()):  # half written
                taken.begin()
                taken.leaves.fill_(0xDD)
                taken.unlock()
                assert store.latest is latest
                continue
            before, truth = truth, [version * 10.0 + leaf for leaf in range(leaves)]
            assert store.pack(taken, version, list(map(torch.tensor, truth))) is store.latest
            assert content(taken) == truth
            if version > 1 and data.draw(st.booleans()):  # it is not published
                store.withdraw(version)
                truth = before
                assert store.latest is latest is not None
                assert content(latest) == truth
            for each in read:
                each.unpin()
