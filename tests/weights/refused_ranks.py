"""Run by test_gather_calls.py: three ranks over Gloo, one of which alone is refused a call, or fails in it.

python -m tests.weights.refused_ranks FILE      FILE: for torch's FileStore; must not exist
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

from rlinf_async import MultiProcessWeightSyncScheme, WorkerWeightSyncScheme as ByCalls
from rlinf_async.errors import TransferFailed
from rlinf_async.weights import BucketWeightSyncer, ParamTree, PatchWeightSyncer
from rlinf_async.weights.model.gather_calls import GatherCalls
from tests._support.weight_parts import gather_buckets
from tests.weights.ranks import run

RANKS = 3
LAYERS = 4


def weights(mesh: DeviceMesh, value: float) -> dict[str, Any]:
    """Collective, so that all are made before anybody is out of step."""
    return {f"l{n}": distribute_tensor(torch.full((6, 2), value + n), mesh, [Shard(0)]) for n in range(LAYERS)}


def layers(value: float) -> dict[str, set[float]]:
    return {f"l{n}": {value + n} for n in range(LAYERS)}


def values(tensors: dict[str, torch.Tensor]) -> dict[str, set[float]]:
    return {name: set(tensor.view(-1).tolist()) for name, tensor in tensors.items()}


def zeros() -> dict[str, torch.Tensor]:
    return {f"l{n}": torch.zeros(6, 2) for n in range(LAYERS)}


def gathered(given: dict[str, Any], call: Any) -> dict[str, set[float]]:
    found: dict[str, torch.Tensor] = {}
    for bucket in gather_buckets(ParamTree.of(given), call, 60):
        found.update({path[0]: tensor for path, tensor in bucket.items()})
    return values(found)


def calls(mesh: DeviceMesh, rank: int) -> None:
    """What belongs to a call that is over is thrown away; what belongs to a later one is kept for that."""
    summed = {number: DTensor.from_local(torch.full((2,), float(number)), mesh, [Partial()]) for number in range(12)}
    given = {number: weights(mesh, 10.0 * number) | {"sum": summed[number]} for number in range(12)}
    one, other = GatherCalls(), GatherCalls()

    def both(sender: GatherCalls, number: int) -> None:
        found = gathered(given[number], sender.next())
        if rank == 0:
            assert found == layers(10.0 * number) | {"sum": {3.0 * number}}, (number, found)

    for sender in (one, other):
        both(sender, 0)
    for number in (1, 2):  # refused on the rank that gathers, which calls the other sender next
        if rank == 0:
            one.next()
        elif number == 1:
            gathered(weights_only(given[number]), one.next())
        else:
            gathered(given[number], one.next())
        both(other if number == 1 else one, number)
    refusing, number = 2, 3  # refused on another rank alone
    call = one.next()
    if rank == 0:
        with pytest.raises(TransferFailed, match=r"rank 2 takes no part in call 5 .* what came is of call 6"):
            gathered(given[number], call)
    elif rank != refusing:
        gathered(given[number], call)
    both(one, 4)
    both(other, 5)
    call = one.next()  # given up after a bucket of several
    if rank == 0:
        next(iter(gather_buckets(ParamTree.of(given[6]), call, 60)))
    else:
        gathered(given[6], call)
    both(one, 7)
    call = one.next()  # other weights
    if rank == 0:
        with pytest.raises(TransferFailed, match="rank 1 has 16 bytes of shards where rank 0 expects 32"):
            gathered(given[8], call)
    else:
        gathered({"l0": given[8]["l0"]}, call)
    both(one, 9)


def weights_only(given: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in given.items() if name != "sum"}


def refused_while_pending(mesh: DeviceMesh, rank: int) -> None:
    given, arrived = {number: weights(mesh, 10.0 * number) for number in range(1, 5)}, zeros()
    ours, theirs = multiprocessing.Pipe()
    sending, receiving = MultiProcessWeightSyncScheme(), MultiProcessWeightSyncScheme()
    sending.init_on_sender("policy", pipes=[ours])
    receiving.init_on_worker("policy", pipe=theirs, model=arrived)
    sender, receiver = sending.get_sender(), receiving.get_receiver()
    may_go_on = threading.Event()
    seen: list[Any] = []

    def work() -> None:
        for number in range(3):
            if number:
                assert may_go_on.wait(30)
            assert receiver.receive(timeout=30)
            seen.append((receiver.version, values(arrived)))

    worker = threading.Thread(target=work)
    if rank == 0:
        worker.start()
    sender.send(given[1])
    sender.send_async(given[2])
    if rank != 0:
        sender.wait_async()
        sender.send_async(given[3])
        sender.wait_async()
    else:
        with pytest.raises(RuntimeError, match="Call wait_async"):
            sender.send_async(given[3])
        may_go_on.set()
        sender.wait_async()
    sender.send(given[4])
    if rank == 0:
        worker.join()
        assert seen == [(1, layers(10.0)), (2, layers(20.0)), (3, layers(40.0))], seen
    receiving.close()
    sending.close()


class Called:
    def __init__(self) -> None:
        self.got: dict[str, torch.Tensor] = {}

    def update_policy_weights_(self, policy_or_weights: dict[str, torch.Tensor]) -> None:
        self.got = {name: tensor.clone() for name, tensor in policy_or_weights.items()}


def refused_for_its_worker(mesh: DeviceMesh, rank: int) -> None:
    given, called = {number: weights(mesh, 10.0 * number) for number in (1, 2)}, Called()
    scheme = ByCalls()
    scheme.init_on_sender("policy", remote_collectors=[called])
    sender = scheme.get_sender()
    if rank == 0:
        with pytest.raises(ValueError, match="7 not registered"):
            sender.send(given[1], worker_ids=[7])
    else:
        sender.send(given[1], worker_ids=[7])
    sender.send(given[2])
    if rank == 0:
        assert values(called.got) == layers(20.0)
    scheme.close()


async def lost_half_way(make: Callable[[], Any], mesh: DeviceMesh, rank: int) -> None:
    """What takes the weights away fails on rank 0 while they are prepared and sent: the other ranks end too."""
    given = {number: weights(mesh, 10.0 * number) for number in (1, 2, 3)}
    syncer, receiver, arrived = make(), make(), zeros()
    there: asyncio.Queue[Any] = asyncio.Queue()
    back: asyncio.Queue[Any] = asyncio.Queue()
    left = 1

    async def send(message: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise ConnectionError("the receiver is gone")
        await there.put(message)

    async def initialised(send: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(syncer.init_sender(given[1], None, send, back.get, is_sender=rank == 0))
            if rank == 0:
                group.create_task(receiver.init_receiver(arrived, there.get, back.put))

    if isinstance(syncer, PatchWeightSyncer) and rank == 0:
        left = 2
        beginning = asyncio.create_task(receiver.init_receiver(arrived, there.get, back.put))
        with pytest.raises(ConnectionError):
            await syncer.init_sender(given[1], None, send, back.get)
        beginning.cancel()
        await asyncio.wait([beginning])
    elif isinstance(syncer, PatchWeightSyncer):
        await syncer.init_sender(given[1], None, send, is_sender=False)
    dist.barrier()
    while not there.empty():
        there.get_nowait()
    await initialised(there.put)
    left = 1 if isinstance(syncer, BucketWeightSyncer) else 0
    if rank == 0:
        with pytest.raises(ConnectionError):
            await syncer.sync(given[2], send, 1)
    else:
        await syncer.sync(given[2], send, 1)
    dist.barrier()  # nobody is kept waiting until the next version
    await syncer.sync(given[3], there.put, 2)
    if rank == 0:
        assert await receiver.apply(arrived, there.get) == 2
        assert values(arrived) == layers(30.0)
    await refused_at_once(syncer, receiver, there, arrived, mesh, rank)


async def refused_at_once(
    syncer: Any, receiver: Any, there: asyncio.Queue[Any], arrived: Any, mesh: DeviceMesh, rank: int
) -> None:
    """A number that rank 0 alone has been given wrongly."""
    given = {number: weights(mesh, 10.0 * number) for number in (4, 5)}
    if rank == 0:
        with pytest.raises(ValueError, match="version"):
            await syncer.sync(given[4], there.put, 0)
    else:
        await syncer.sync(given[4], there.put, 3)
    await syncer.sync(given[5], there.put, 4)
    if rank == 0:
        assert await receiver.apply(arrived, there.get) == 4
        assert values(arrived) == layers(50.0)


def rank_main(rank: int) -> None:
    mesh = init_device_mesh("cpu", (RANKS,))
    calls(mesh, rank)
    refused_while_pending(mesh, rank)
    refused_for_its_worker(mesh, rank)
    for make in (
        lambda: BucketWeightSyncer(bucket_size=40),
        lambda: PatchWeightSyncer(init_sync_enabled=True, init_sync_bucket_size=40),
    ):
        asyncio.run(lost_half_way(make, mesh, rank))


if __name__ == "__main__":
    run(rank_main, RANKS)
