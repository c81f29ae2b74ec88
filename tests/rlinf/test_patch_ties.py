"""Patches for tied tensors: one value for all of them, or an error."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights import PatchWeightSyncer
from tests.rlinf.two_ends import Wire, meet

LARGE = 40_000
"""Elements of a tensor that is a piece of a patch by itself."""


async def two(source: dict[str, Any], target: dict[str, Any]) -> tuple[PatchWeightSyncer, PatchWeightSyncer, Wire]:
    sender, receiver = PatchWeightSyncer(), PatchWeightSyncer()

    class Weights(dict[str, Any]):
        def state_dict(self) -> dict[str, Any]:
            return self

    wire: Wire = await meet(sender, receiver, Weights(source), Weights(target))  # type: ignore[arg-type]
    return sender, receiver, wire


@pytest.mark.parametrize("size", [4, LARGE])
async def test_different_values_for_a_tied_tensor_are_refused_and_nothing_is_written(size: int) -> None:
    source = {"a": torch.zeros(size), "b": torch.ones(size), "c": torch.ones(size)}
    tied = torch.full((size,), 7.0)
    target = {"a": tied, "b": tied, "c": torch.full((size,), 7.0)}
    sender, receiver, wire = await two(source, target)
    await sender.sync(source, wire.send, 1)
    words = re.escape("'a' and 'b' are tied in the destination, and their values differ: tie them in the weights too")
    with pytest.raises(WeightMismatch, match=words):
        await receiver.apply(target, wire.there.get)
    assert {float(value) for each in target.values() for value in each} == {7.0}


@pytest.mark.parametrize("size", [4, LARGE])
async def test_equal_values_for_a_tied_tensor_arrive_until_they_differ(size: int) -> None:
    source = {"a": torch.zeros(size), "b": torch.zeros(size)}
    tied = torch.full((size,), 7.0)
    target = {"a": tied, "b": tied}
    sender, receiver, wire = await two(source, target)
    for version in (1, 2, 3):
        for tensor in source.values():
            tensor[version] = version
        await sender.sync(source, wire.send, version)
        assert await receiver.apply(target, wire.there.get) == version
        assert torch.equal(tied, source["a"])
    before = tied.clone()
    source["a"][1] = 9
    await sender.sync(source, wire.send, 4)
    with pytest.raises(WeightMismatch, match="'a' and 'b' are tied in the destination"):
        await receiver.apply(target, wire.there.get)
    assert torch.equal(tied, before), "no mixture of the two"
    source["b"][1] = 9
    sender.request_full()
    await sender.sync(source, wire.send, 5)
    assert await receiver.apply(target, wire.there.get) == 5
    assert torch.equal(tied, source["a"])


async def test_ties_of_other_names_at_each_side_are_found_too() -> None:
    """The sender ties a and b, the receiver b and c."""
    first = torch.zeros(4)
    source = {"a": first, "b": first, "c": torch.ones(4)}
    tied = torch.full((4,), 7.0)
    target = {"a": torch.full((4,), 7.0), "b": tied, "c": tied}
    sender, receiver, wire = await two(source, target)
    await sender.sync(source, wire.send, 1)
    with pytest.raises(WeightMismatch, match="'b' and 'c' are tied in the destination"):
        await receiver.apply(target, wire.there.get)
    assert tied.tolist() == [7] * 4
