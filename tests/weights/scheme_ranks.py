"""Run by test_sharded.py: two ranks over Gloo have one sharded model and send it by every scheme.

python -m tests.weights.scheme_ranks FILE      FILE: for torch's FileStore; must not exist
"""

from __future__ import annotations

import asyncio
import multiprocessing
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.tensor import DTensor

from rlinf_async import (
    DistributedWeightSyncScheme,
    MultiProcessWeightSyncScheme,
    SharedMemWeightSyncScheme,
    WorkerWeightSyncScheme as ByCalls,
)
from tests.weights.ranks import model, run, sharded_model

RANKS = 2


class Called:
    def __init__(self, receiver: Any) -> None:
        self._receiver = receiver

    async def update_policy_weights_(self, policy_or_weights: Any, version: int) -> None:
        await self._receiver.apply_weights(policy_or_weights, version)


def ends(kind: type, strategy: str, net: nn.Module, arrived: nn.Module, rank: int) -> tuple[Any, Any, Any]:
    """Both ends, and what has to live as long; all ranks are told of the same worker, and rank 0's are used."""
    sending, receiving = kind(strategy=strategy), kind(strategy=strategy)
    if kind is ByCalls:
        receiving.init_on_worker("policy", model=arrived)
        sending.init_on_sender("policy", remote_collectors=[Called(receiving.get_receiver())], source_model=net)
        return sending, receiving, None
    if kind is DistributedWeightSyncScheme:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        receiving.init_on_worker("policy", store=store, rank=1, model=arrived)
        sending.init_on_sender("policy", store=store, num_workers=1, source_model=net)
        return sending, receiving, store
    ours, theirs = multiprocessing.Pipe()
    receiving.init_on_worker("policy", pipe=theirs, model=arrived)
    sending.init_on_sender("policy", pipes=[ours], source_model=net)
    return sending, receiving, (ours, theirs)


async def sent(kind: type, strategy: str, rank: int) -> None:
    """Every step of the sharded model arrives whole, whatever becomes of it once it is staged."""
    net, plain, arrived = sharded_model(), model(), model()
    sending, receiving, _held = ends(kind, strategy, net, arrived, rank)
    serves = rank == 0 and kind is not ByCalls
    serving = receiving.get_receiver().serve() if serves else None
    sender = sending.get_sender()
    await sending.connect()
    for version in (2, 3):
        with torch.no_grad():
            for each in (net, plain):
                for parameter in each.parameters():
                    parameter.add_(1.0)
        await sender.send_async()
        kept = [parameter.to_local().clone() for parameter in net.parameters()]
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.to_local().fill_(-1)
        report = await sender.wait_async()
        with torch.no_grad():
            for parameter, local in zip(net.parameters(), kept, strict=True):
                parameter.to_local().copy_(local)
        assert (report.version, sender.version) == (version, version)
        assert set(report.per_worker) == ({0} if rank == 0 else set())
        expected = plain.state_dict() if rank == 0 else model().state_dict()
        assert receiving.get_receiver().version == (version if rank == 0 else 0)
        for name, tensor in arrived.state_dict().items():
            assert torch.equal(tensor, expected[name]), name
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(7.0)
    await sender.send()
    if rank == 0:
        assert {float(value) for value in arrived[2].bias} == {7.0}
    for scheme in (sending, receiving):
        await scheme.close()
    if serving is not None:
        await asyncio.wait([serving])


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("a whole copy on every rank")


def rank_main(rank: int) -> None:
    DTensor.full_tensor = refuse  # type: ignore[method-assign]
    for kind in (MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme, DistributedWeightSyncScheme, ByCalls):
        for strategy in ("state_dict", "tensordict"):
            asyncio.run(sent(kind, strategy, rank))


if __name__ == "__main__":
    run(rank_main, RANKS)
