"""Run by test_gather.py: two ranks over Gloo train one sharded model, and rank 0 publishes it.

python -m tests.weights.published_ranks FILE      FILE: for torch's FileStore; must not exist
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from rlinf_async.errors import ConfigError, WeightMismatch
from rlinf_async.weights import Publisher, Subscriber
from rlinf_async.weights.model.shards import is_sharded
from tests._support.weight_parts import LocalLink, Store
from tests.weights.ranks import model, run, sharded_model

RANKS = 2


async def published(source: Any, *destinations: Any, **options: Any) -> tuple[Publisher, list[Subscriber]]:
    theirs = {name: options[name] for name in ("apply", "verify") if name in options}
    publisher, subscribers = Publisher(source, **options), []
    for number, destination in enumerate(destinations):
        to_receiver, to_sender = LocalLink.pair()
        publisher.add(number, to_receiver)
        subscribers.append(Subscriber(to_sender, destination, **theirs))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(publisher.connect(20))
        for subscriber in subscribers:
            tasks.create_task(subscriber.connect(20))
    for subscriber in subscribers:
        subscriber.serve()
    return publisher, subscribers


async def trained(rank: int) -> None:
    """Each step of the sharded model arrives as the same step of a plain one."""
    net, plain, arrived = sharded_model(), model(), model()
    assert sum(map(is_sharded, net.parameters())) == 6
    optimizer, reference = torch.optim.SGD(net.parameters(), 0.1), torch.optim.SGD(plain.parameters(), 0.1)
    publisher, subscribers = await published(net, *([arrived] if rank == 0 else []))
    for version in (1, 2, 3):
        data = torch.arange(35.0).view(5, 7) * version
        for each, stepper in ((net, optimizer), (plain, reference)):
            stepper.zero_grad()
            each(data).square().mean().backward()
            stepper.step()
        handle = await publisher.publish()
        kept = [parameter.to_local().clone() for parameter in net.parameters()]
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.to_local().fill_(-1)  # as soon as it may change
        report = await handle
        with torch.no_grad():
            for parameter, local in zip(net.parameters(), kept, strict=True):
                parameter.to_local().copy_(local)
        assert (report.version, publisher.version) == (version, version)
        assert set(report.per_worker) == ({0} if rank == 0 else set())
        if rank == 0:
            for name, tensor in plain.state_dict().items():
                assert torch.allclose(arrived.state_dict()[name], tensor), name
    for each in (publisher, *subscribers):
        await each.close()


async def to_shards(rank: int) -> None:
    """A follower whose parameters are DTensors gets its slices, of an unsharded trainer here."""
    mesh = init_device_mesh("cpu", (RANKS,))
    source = {"rows": torch.arange(15.0).view(5, 3), "columns": torch.arange(15.0).view(3, 5), "all": torch.ones(2)}
    places: dict[str, list[Any]] = {"rows": [Shard(0)], "columns": [Shard(1)], "all": [Replicate()]}
    for apply in ("copy", "map"):
        mine = {name: distribute_tensor(torch.zeros_like(source[name]), mesh, place) for name, place in places.items()}
        publisher, (subscriber,) = await published(source, mine, apply=apply, verify="sha256")
        for version in (1, 2, 3, 4, 5):
            source["rows"] += 1
            await (await publisher.publish(source))
            assert subscriber.version == version
            for name, place in places.items():
                assert torch.equal(mine[name].to_local(), distribute_tensor(source[name], mesh, place).to_local()), name
        for each in (publisher, subscriber):
            await each.close()


async def cast(rank: int) -> None:
    """Weights in another dtype; and what does not fit is refused by every rank."""
    mesh = init_device_mesh("cpu", (RANKS,))

    def weights(value: float, rows: int = 5) -> dict[str, Any]:
        return {
            "a": distribute_tensor(torch.full((rows, 3), float(value)), mesh, [Shard(0)]),
            "b": distribute_tensor(torch.full((4,), float(value)), mesh, [Shard(0)]),
            "c": torch.full((2,), float(value)),
        }

    arrived = {"a": torch.zeros(5, 3), "b": torch.zeros(4), "c": torch.zeros(2)}
    publisher, subscribers = await published(
        weights(0), *([arrived] if rank == 0 else []), transport_dtype=torch.bfloat16
    )
    await (await publisher.publish(weights(1.00390625)))
    await (await publisher.publish(weights(2)))
    with pytest.raises(WeightMismatch, match="'a' has become"):
        await publisher.publish(weights(3, rows=6))
    if rank == 0:
        assert {value for tensor in arrived.values() for value in tensor.view(-1).tolist()} == {2.0}
    await (await publisher.publish(weights(4)))
    assert publisher.version == 3
    if rank == 0:
        assert {value for tensor in arrived.values() for value in tensor.view(-1).tolist()} == {4.0}
    for each in (publisher, *subscribers):
        await each.close()


async def misplaced(rank: int) -> None:
    """Receivers of a rank that gathers nothing are refused before anybody waits."""
    if rank == 1:
        publisher = Publisher(sharded_model())
        publisher.add(0, LocalLink.pair()[0])
        with pytest.raises(ConfigError, match="add them on rank 0"):
            await publisher.connect(20)
        with pytest.raises(ConfigError, match="add them on rank 0"):
            await publisher.publish()
        await publisher.close()
    else:
        sharded_model()


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("a whole copy, on a rank that it is not for")


def rank_main(rank: int) -> None:
    asyncio.run(to_shards(rank))
    DTensor.full_tensor = refuse  # type: ignore[method-assign]
    if rank != 0:
        Store.__init__ = refuse  # type: ignore[method-assign]
    for case in (trained, cast, misplaced):
        asyncio.run(case(rank))


if __name__ == "__main__":
    run(rank_main, RANKS)
