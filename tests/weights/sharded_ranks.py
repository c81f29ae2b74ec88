"""Run by test_gather.py: four ranks over Gloo, forked from one process that has imported torch.

python -m tests.weights.sharded_ranks CASE FILE      FILE: for torch's FileStore; must not exist
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from rlinf_async.errors import ConfigError
from rlinf_async.weights import BucketWeightSyncer, ParamTree, PatchWeightSyncer
from rlinf_async.weights.model.gather_calls import GatherCalls
from rlinf_async.weights.model.shards import is_sharded
from tests._support.weight_parts import gather_buckets, name_of
from tests.weights.ranks import run

RANKS = 4


CALLS = GatherCalls()


def collected(tree: ParamTree, **options: Any) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for bucket in gather_buckets(tree, CALLS.next(), **options):
        assert not found.keys() & {name_of(path) for path in bucket}
        found.update({name_of(path): tensor for path, tensor in bucket.items()})
    return found


def meshes_and_placements() -> None:
    torch.manual_seed(0)
    line, square = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
    whole = {
        "rows": torch.randn(10, 3),  # 3, 3, 3, 1
        "few": torch.randn(3, 2),  # two ranks have none, or one row
        "columns": torch.randn(2, 9).bfloat16(),
        "both": torch.randn(5, 7),
        "same": torch.randn(6, 5),
        "twice": torch.randn(11, 2),
        "copies": torch.randn(3),
        "scalar": torch.tensor(5),
        "bytes": torch.randint(0, 255, (7,), dtype=torch.uint8),
    }
    placed = {
        "rows": distribute_tensor(whole["rows"], line, [Shard(0)]),
        "few": distribute_tensor(whole["few"], line, [Shard(0)]),
        "columns": distribute_tensor(whole["columns"], line, [Shard(1)]),
        "both": distribute_tensor(whole["both"], square, [Shard(0), Shard(1)]),
        "same": distribute_tensor(whole["same"], square, [Replicate(), Shard(1)]),
        "twice": distribute_tensor(whole["twice"], square, [Shard(0), Shard(0)]),
        "copies": distribute_tensor(whole["copies"], square, [Replicate(), Replicate()]),
        "scalar": whole["scalar"],
        "bytes": distribute_tensor(whole["bytes"], line, [Shard(0)]),
    }
    full, calls = DTensor.full_tensor, []
    DTensor.full_tensor = lambda self, **_: calls.append(self) or full(self)  # type: ignore[method-assign]
    tree = ParamTree.of(placed)
    for size in (1, 200, 1 << 20):
        found = collected(tree, bucket_size=size)
        if dist.get_rank() == 0:
            assert found.keys() == whole.keys()
            assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())
        else:
            assert found.keys() == {"scalar"}
    assert not calls, "a rank had a whole tensor that was not for it"
    partial = DTensor.from_local(torch.ones(3), line, [Partial()])
    found = collected(ParamTree.of({"sum": partial}))
    assert ("sum" in found) is (dist.get_rank() == 0)
    assert not found or found["sum"].tolist() == [4, 4, 4]


def sharded_model() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3))
    model = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3))
    model.load_state_dict(plain.state_dict())
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model, plain


def fsdp() -> None:
    model, plain = sharded_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    reference = torch.optim.SGD(plain.parameters(), 0.1)
    sharded = [name for name, tensor in model.state_dict().items() if is_sharded(tensor)]
    assert len(sharded) == 4
    for _ in range(2):
        data = torch.ones(5, 7)
        for net, stepper in ((model, optimizer), (plain, reference)):
            stepper.zero_grad()
            net(data).square().sum().backward()
            stepper.step()
        found = collected(ParamTree.of(model))
        if dist.get_rank() == 0:
            assert all(torch.allclose(found[name], tensor) for name, tensor in plain.state_dict().items())


def syncers() -> None:
    for kind in (lambda: BucketWeightSyncer(100), PatchWeightSyncer, lambda: PatchWeightSyncer(init_sync_enabled=True)):
        for is_told in (True, False):
            asyncio.run(synchronised(kind, is_told))


async def synchronised(kind: Callable[[], Any], is_told: bool) -> None:
    """Args: is_told: whether ranks say which one sends; where they do not, as in RLinf, each hears of the receiver."""
    model, plain = sharded_model()
    sends = dist.get_rank() == 0
    target = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3))
    syncer, receiver = kind(), kind()
    there: asyncio.Queue[Any] = asyncio.Queue()
    back: asyncio.Queue[Any] = asyncio.Queue()
    told = {"is_sender": sends} if is_told else {}
    async with asyncio.TaskGroup() as group:
        group.create_task(syncer.init_sender(model.state_dict(), None, there.put, back.get, **told))
        if sends:
            group.create_task(receiver.init_receiver(target.state_dict(), there.get, back.put))
        elif not is_told and isinstance(syncer, PatchWeightSyncer):
            await PatchWeightSyncer().init_receiver(target.state_dict(), there.get, back.put)
    for version in (1, 2, 3):
        with torch.no_grad():
            for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                mine.add_(version)
                theirs.add_(version)
        await syncer.sync(model.state_dict(), there.put, version)
        if sends:
            assert await receiver.apply(target, there.get) == version
            assert all(torch.equal(a, b) for a, b in zip(target.parameters(), plain.parameters(), strict=True))
        else:
            assert there.empty()
    assert back.empty()
    if dist.get_rank() == 1:
        wrong = BucketWeightSyncer(100)
        await wrong.init_sender(model.state_dict(), None, there.put, is_sender=True)
        with pytest.raises(ConfigError, match="gathered on rank 0"):
            await wrong.sync(model.state_dict(), there.put, 1)
        with pytest.raises(ConfigError, match="gathered on rank 0"):
            await PatchWeightSyncer().init_sender(model.state_dict(), None, there.put, back.get, is_sender=True)


def rank_main(rank: int) -> None:
    meshes_and_placements()
    fsdp()
    syncers()


if __name__ == "__main__":
    run(rank_main, RANKS)
