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
from rlinf_async.weights.model.copying import copy_tensors
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


def test_the_first_version_must_be_complete() -> None:
    store = store_of(2)
    with pytest.raises(ValueError, match="every leaf"):
        store.pack(store.take(), 1, [torch.ones(())], [1])
    assert store.latest is None
    store.close()


@settings(deadline=None)
@given(st.data(), st.integers(2, 4), st.integers(1, 5))
def test_every_version_is_complete_whatever_was_given(data: st.DataObject, slots: int, leaves: int) -> None:
    truth = [0.0] * leaves
    with contextlib.closing(store_of(leaves, slots)) as store:
        for version in range(1, 8):
            read = [slot for slot in store._slots if slot is not store.latest and data.draw(st.booleans())]
            for each in read:
                each.hold()
            taken, latest = store.take(), store.latest
            assert taken is not latest
            assert taken not in read
            if version > 1 and data.draw(st.booleans()):  # half written
                taken.begin()
                taken.leaves.fill_(0xDD)
                taken.give_back()
                assert store.latest is latest
                continue
            given = None if version == 1 else sorted(data.draw(st.sets(st.integers(0, leaves - 1))))
            before, new = truth.copy(), range(leaves) if given is None else given
            for leaf in new:
                truth[leaf] = version * 10.0 + leaf
            assert store.pack(taken, version, [torch.tensor(truth[leaf]) for leaf in new], given) is store.latest
            assert content(taken) == truth
            if version > 1 and data.draw(st.booleans()):  # it is not published
                store.withdraw(version)
                truth = before
                assert store.latest is latest is not None
                assert content(latest) == truth
            for each in read:
                each.let_go()


def test_what_a_slot_has_already_is_not_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store, values = store_of(3), [torch.tensor(float(leaf)) for leaf in range(3)]
    store.pack(store.take(), 1, values)
    store.pack(store.take(), 2, values[2:], [2])
    copied: list[int] = []
    monkeypatch.setattr(
        f"{Store.__module__}.copy_tensors", lambda *both: (copied.append(len(both[0])), copy_tensors(*both))
    )
    # The first slot has the leaves 0 and 1 of version 1, which are still the latest; leaf 2 changed in version 2.
    store.pack(store.take(), 3, values[:1], [0], copy=copy_tensors)
    assert copied == [1]
    store.close()
