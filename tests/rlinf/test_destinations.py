"""Syncers and their destinations: the same ones are written, or refused, as everywhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlinf_async.errors import WeightMismatch
from rlinf_async.rlinf import PatchWeightSyncer
from tests.rlinf.two_ends import KINDS, meet
from tests.weights.contract import destinations
from tests.weights.ends import Tied, shown

every_kind = pytest.mark.parametrize("kind", [kind for kind in KINDS if "in part" not in kind])  # of which keys


class State(dict[str, Any]):
    """A state_dict of any form."""

    def state_dict(self) -> dict[str, Any]:
        return self


async def between(kind: str, source: dict[str, Any], target: dict[str, Any]) -> tuple[Any, Any, Any]:
    sender, receiver = KINDS[kind](), KINDS[kind]()
    wire: Any = await meet(sender, receiver, State(source), State(target))  # type: ignore[arg-type]
    return sender, receiver, wire


async def deliver(ends: tuple[Any, Any, Any], source: dict[str, Any], target: dict[str, Any], version: int) -> None:
    sender, receiver, wire = ends
    await sender.sync(source, wire.send, version)
    assert await receiver.apply(target, wire.there.get) == version


@every_kind
async def test_lazy_stacks_and_modules_in_dicts_are_written(kind: str) -> None:
    source = {**destinations.for_stacks(0.0), "policy": Tied().state_dict()}
    target = {**destinations.stacked(), "policy": Tied()}
    ends = await between(kind, source, target)
    for version in (1, 2, 3):
        news = {**destinations.for_stacks(float(version)), "policy": Tied(float(version)).state_dict()}
        await deliver(ends, news, target, version)
        assert shown(target) == {version}


@every_kind
async def test_what_cannot_be_written_is_refused_by_name(kind: str) -> None:
    source, target = ({"a": torch.zeros(4), "b": torch.zeros(4)} for _ in range(2))
    ends = await between(kind, source, target)
    base = torch.zeros(6)
    target |= {"a": base[:4], "b": base[2:]}
    news = {name: torch.ones_like(tensor) for name, tensor in source.items()}
    with pytest.raises(WeightMismatch, match="'a' and 'b' share a part of their memory in the destination"):
        await deliver(ends, news, target, 1)
    assert shown(target) == {0.0}


@every_kind
async def test_tensors_made_for_inference_are_written(kind: str) -> None:
    with torch.inference_mode():
        target = {"a": torch.zeros(4), "b": torch.zeros(2, 2)}
    source = {"a": torch.zeros(4), "b": torch.zeros(2, 2)}
    ends = await between(kind, source, target)
    await deliver(ends, {name: torch.ones_like(tensor) for name, tensor in source.items()}, target, 1)
    assert shown(target) == {1.0}


@every_kind
async def test_tensors_in_another_order_are_written_and_keep_it(kind: str) -> None:
    source, target = ({"a": torch.zeros(40, 50).t(), "b": torch.zeros(3)} for _ in range(2))
    ends = await between(kind, source, target)
    for version in (1, 2, 3):
        source["a"][version] += torch.arange(40.0) + version
        await deliver(ends, source, target, version)
        assert torch.equal(target["a"], source["a"])
    assert target["a"].stride() == (1, 50)


async def test_a_patch_goes_to_all_members_that_are_one_tensor_at_the_sender() -> None:
    """The sender ties two names, of which the receiver has one as a stack, and one as a tensor."""
    weight = torch.zeros(3, 2, 2)
    source = {"s.weight": weight, "s.bias": torch.zeros(3, 2), "t": weight}
    target = {"s": destinations.stacked()["s"], "t": torch.zeros(3, 2, 2)}
    sender, receiver = PatchWeightSyncer(), PatchWeightSyncer()
    wire = await meet(sender, receiver, State(source), State(target))  # type: ignore[arg-type]
    for version in (1, 2):
        weight[version] += version
        await deliver((sender, receiver, wire), source, target, version)
        assert torch.equal(target["t"], weight)
        assert torch.equal(target["s"]["weight"], weight)
