"""RLinf's syncers over the framework's send, receive and broadcast."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from torch import nn

from rlinf_async import Cluster, NodePlacementStrategy, PeerLost, Worker, WorkerDied
from rlinf_async.weights import WeightSyncer
from rlinf_async.weights.model.fit import as_bytes

EVERYBODY = [("trainer", 0), ("rollout", [0, 1])]


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(50, 300), nn.BatchNorm1d(300), nn.Linear(300, 1000))


def value(model: nn.Module) -> list[int]:
    return [int(as_bytes(tensor).long().sum()) for tensor in model.state_dict().values()]


class Trainer(Worker):
    async def train(self, cfg: dict[str, object], steps: int) -> list[list[int]]:
        model, syncer = network(1), WeightSyncer.create(cfg)

        async def send(message: object) -> None:
            await self.broadcast(message, groups=EVERYBODY, src=("trainer", 0), options=syncer.comm_options)

        async def recv() -> object:
            return await self.recv("rollout", 0)

        await syncer.init_sender(model.state_dict(), None, send, recv)
        values = []
        for step in range(1, steps + 1):
            with torch.no_grad():
                model[2].weight[step] += 1
                model[1].running_mean += 1
            values.append(value(model))
            staged = await syncer.stage(model.state_dict(), step // 2)  # most versions are sent twice
            with torch.no_grad():
                model[0].weight += 1  # what has been staged does not see it
            await staged.deliver(send)
        return values

    async def train_and_die(self, cfg: dict[str, object]) -> None:
        """Between two buckets of the second version."""
        model, syncer, sent = network(1), WeightSyncer.create(cfg), 0

        async def send(message: object) -> None:
            nonlocal sent
            await self.broadcast(message, groups=EVERYBODY, src=("trainer", 0))
            sent += 1
            if syncer.version == 1 and sent == 3:
                for rank in (0, 1):
                    await self.recv("rollout", rank)  # they have what was sent
                os.kill(os.getpid(), signal.SIGKILL)

        await syncer.init_sender(model.state_dict(), None, send)
        await syncer.sync(model.state_dict(), send, 1)
        with torch.no_grad():
            for tensor in model.parameters():
                tensor += 1
        sent = 0
        await syncer.sync(model.state_dict(), send, 2)


class Rollout(Worker):
    async def roll_until_the_trainer_dies(self, cfg: dict[str, object]) -> tuple[list[int], list[int], int]:
        """The weights before and after, and the version."""
        model, syncer, came = network(2), WeightSyncer.create(cfg), 0

        async def recv() -> object:
            nonlocal came
            message = await self.broadcast(groups=EVERYBODY, src=("trainer", 0))
            came += 1
            if syncer.version == 1 and came == 3:
                await self.send("three", "trainer", 0)
            return message

        await syncer.init_receiver(model.state_dict(), recv)
        await syncer.apply(model, recv)
        before, came = value(model), 0
        with pytest.raises(PeerLost):
            await syncer.apply(model, recv)
        return before, value(model), syncer.version

    async def roll(self, cfg: dict[str, object], steps: int) -> list[list[int]]:
        model, syncer = network(2), WeightSyncer.create(cfg)

        async def send(message: object) -> None:
            if self._rank == 0:
                await self.send(message, "trainer", 0)

        async def recv() -> object:
            return await self.broadcast(groups=EVERYBODY, src=("trainer", 0), options=syncer.comm_options)

        await syncer.init_receiver(model.state_dict(), recv, send)
        values = []
        for step in range(1, steps + 1):
            assert await syncer.apply(model, recv) == step // 2
            values.append(value(model))
        return values


@pytest.mark.parametrize(
    "cfg",
    [
        {"type": "bucket", "bucket_size": 100_000, "bucket_device": "cuda"},
        {"type": "patch", "init_sync": {"enabled": True}, "use_ring_sync": True},
    ],
)
def test_two_rollout_workers_have_every_version_of_the_trainer_as_often_as_it_is_sent(cfg: dict[str, object]) -> None:
    with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        trainer = Trainer.create_group().launch(cluster, NodePlacementStrategy([0]), name="trainer")
        rollout = Rollout.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="rollout")
        rolling = rollout.roll(cfg, 5)
        trained = trainer.train(cfg, 5).wait(timeout=60)[0]
        assert rolling.wait(timeout=60) == [trained, trained]


def test_a_trainer_that_is_killed_between_two_buckets_leaves_every_rollout_worker_its_last_whole_version() -> None:
    cfg: dict[str, object] = {"type": "bucket", "bucket_size": 2000}
    with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        trainer = Trainer.create_group().launch(cluster, NodePlacementStrategy([0]), name="trainer")
        rollout = Rollout.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="rollout")
        rolling = rollout.roll_until_the_trainer_dies(cfg)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            trainer.train_and_die(cfg).wait(timeout=60)
        for before, after, version in rolling.wait(timeout=60):
            assert (after, version) == (before, 1)
