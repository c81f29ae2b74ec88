"""Conformance claims: destinations of every kind get the same, or the same error."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict
from torch import nn
from torch.distributed.tensor import Replicate, Shard

from rlinf_async.errors import WeightMismatch
from tests.weights.contract.claims import Make, claim
from tests.weights.ends import Tied


def stacked() -> dict[str, Any]:
    members = TensorDict.from_modules(*(nn.Linear(2, 2) for _ in range(3)), lazy_stack=True)
    for tensor in (tensor for member in members.tensordicts for tensor in member.values()):
        tensor.detach().zero_()
    return {"s": members, "w": torch.zeros(2)}


def for_stacks(value: float) -> dict[str, Any]:
    return {
        "s": {"weight": torch.full((3, 2, 2), value), "bias": torch.full((3, 2), value)},
        "w": torch.full((2,), value),
    }


@claim()
async def a_lazy_stack_is_written_into_its_members(make: Make) -> None:
    source = for_stacks(5.0)
    async with make(source, model=stacked) as ends:
        await ends.deliver()
        await ends.expect(1, 5.0)
        await ends.deliver(for_stacks(6.0))
        await ends.expect(2, 6.0)


def named(*names: str) -> dict[str, Any]:
    """A lazy stack of members that each have a name."""
    members = [TensorDict({"weight": torch.zeros(2), "name": NonTensorData(name)}, []) for name in names]
    return {"s": LazyStackedTensorDict(*members, stack_dim=0)}


def with_old_names() -> dict[str, Any]:
    return named("old", "older")


@claim()
async def what_is_no_tensor_in_a_lazy_stack_is_written_into_its_members_or_refused(make: Make) -> None:
    source = named("new", "newer")
    async with make(source, model=with_old_names) as ends:
        await ends.deliver()
        assert await ends.receivers.names_in_stack() == [["new", "newer"]] * ends.size
        source["s"].tensordicts[1]["name"] = NonTensorData("newest")
        await ends.deliver()
        assert await ends.receivers.names_in_stack() == [["new", "newest"]] * ends.size
    given = {"s": {"weight": torch.ones(2, 2), "name": "one for both"}}
    await refused(make, given, with_old_names, r"'s\.name' is in a lazy stack", "str is no list")


async def refused(make: Make, source: Any, model: Any, *words: str, **options: Any) -> None:
    """With the first version; nothing is written."""
    async with make(source, model=model, **options) as ends:
        with pytest.raises(Exception, match=".*".join(words)):
            await ends.deliver()
        await ends.expect(0, 0.0)


class HalfMesh:
    """The second of two ranks, as a DeviceMesh says it."""

    shape = (2,)

    def get_coordinate(self) -> list[int]:
        return [1]


def half() -> dict[str, torch.Tensor]:
    return {"rows": torch.zeros(2, 3), "columns": torch.zeros(3, 2), "all": torch.zeros(2)}


def as_half(name: str, tensor: torch.Tensor) -> Any:
    placements = {"rows": Shard(0), "columns": Shard(1), "all": Replicate()}
    return HalfMesh(), [placements[name]]


def as_rows(name: str, tensor: torch.Tensor) -> Any:
    return (HalfMesh(), [Shard(0)]) if name != "all" else None


@claim(only=lambda way: way.kind in ("multiprocess", "shared memory", "linked"))
async def a_shard_gets_its_part_of_the_weights(make: Make) -> None:
    source = {"rows": torch.zeros(5, 3), "columns": torch.zeros(3, 5), "all": torch.zeros(2)}
    async with make(source, model=half, shard=as_half) as ends:
        for version in (1, 2, 3, 4):
            source["rows"][3:], source["columns"][:, 3:], source["all"][:] = version, version, version
            await ends.deliver()
            await ends.expect(version, float(version))
    async with make(source, model=half, shard=as_rows) as ends:
        with pytest.raises(WeightMismatch, match=r"'columns' has shape \[3, 5\] in the weights, of which this rank's"):
            await ends.deliver()


def plain() -> dict[str, torch.Tensor]:
    return {"w": torch.zeros(3)}


@claim(only=lambda way: way.kind in ("multiprocess", "shared memory", "linked"))  # others pack nothing
async def a_quantized_or_nested_source_is_refused_as_what_it_is(make: Make) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some releases of torch deprecate them
        quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    for tensor, kind in ((quantized, "quantized"), (nested, "nested")):
        async with make({"w": tensor}, model=plain) as ends:
            with pytest.raises(WeightMismatch, match=f"'w' is {kind}, and only dense tensors travel"):
                await ends.sender.send()


def halved() -> Tied:
    return Tied().bfloat16()


@claim()
async def a_worker_in_bfloat16_gets_the_weights_of_a_trainer_in_float32(make: Make) -> None:
    source = Tied(1.0)
    async with make(source, model=halved) as ends:
        for version in (1, 2, 3):
            source.fill(version + 2.0**-12)
            await ends.deliver()
            await ends.expect(version, float(version))
        assert await ends.receivers.dtypes() == [{torch.bfloat16}] * ends.size
