"""A sender, a receiver and the wire between them, for tests of syncers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from rlinf_async.errors import PeerLost
from rlinf_async.weights import BucketWeightSyncer, ParamTree, PatchWeightSyncer
from rlinf_async.weights.model.fit import as_bytes


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40))
        self.head = nn.Linear(40, 30)
        self.back = nn.Linear(30, 40, bias=False)
        self.back.weight = self.body[0].weight

    def step(self, share: float = 0.02) -> Net:
        """Changes some of every parameter; among the new values are NaN and -0.0."""
        with torch.no_grad():
            for tensor in self.parameters():
                tensor[torch.rand(tensor.shape) < share] += 1
            self.head.weight[0, :3] = torch.tensor([float("nan"), -0.0, float("inf")])
            self.body[1].num_batches_tracked += 1
        return self


def bits(source: Any) -> dict[str, list[int]]:
    return {name: as_bytes(tensor).tolist() for name, tensor in ParamTree.of(source).to_state_dict().items()}


class Wire:
    """Two queues; what is sent is taken as it is, without a copy."""

    def __init__(self) -> None:
        self.there: asyncio.Queue[Any] = asyncio.Queue()
        self.back: asyncio.Queue[Any] = asyncio.Queue()
        self.sent: list[Any] = []

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        await self.there.put(message)


async def meet(sender: Any, receiver: Any, source: Net, target: Net, names: Any = None) -> Wire:
    wire = Wire()
    async with asyncio.TaskGroup() as group:
        group.create_task(sender.init_sender(source.state_dict(), names, wire.send, wire.back.get))
        group.create_task(receiver.init_receiver(target.state_dict(), wire.there.get, wire.back.put))
    assert sender.sender_initialized()
    assert receiver.receiver_initialized()
    wire.sent.clear()
    return wire


KINDS: dict[str, Any] = {
    "buckets": lambda: BucketWeightSyncer(bucket_size=2000),
    "buckets, each written when it comes": lambda: BucketWeightSyncer(bucket_size=2000, load_instant=True),
    "one bucket": BucketWeightSyncer,
    "patch": PatchWeightSyncer,
    "patch, first whole": lambda: PatchWeightSyncer(init_sync_enabled=True, init_sync_bucket_size=1000),
    "patch, first in part": lambda: PatchWeightSyncer(init_sync_enabled=True, init_sync_prefixes=["head"]),
    "patch, compressed": lambda: PatchWeightSyncer(compression_algorithm="zlib", transport_device="cuda"),
}


def coming(*messages: Any) -> Callable[[], Any]:
    """A ``recv`` that brings these; then the sender is dead."""
    left = list(messages)

    async def recv() -> Any:
        if not left:
            raise PeerLost("the sender is dead")
        return left.pop(0)

    return recv


async def versions(sender: Any, source: Net, numbers: Iterable[int]) -> dict[int, list[Any]]:
    """What a sender sends for each."""
    sent = {}
    for number in numbers:
        wire = Wire()
        await sender.sync(source.step().state_dict(), wire.send, number)
        sent[number] = wire.sent
    return sent


async def a_receiver(kind: Callable[[], Any]) -> tuple[Any, Any, Net, Net]:
    source, target = Net(), Net()
    sender, receiver = kind(), kind()
    await meet(sender, receiver, source, target)
    return sender, receiver, source, target
