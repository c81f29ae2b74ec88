"""The syncers with the framework's own send, receive and broadcast as their two callbacks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlinf_async import Cluster, NodePlacementStrategy, Worker
from rlinf_async.weights.syncer import WeightSyncer
from rlinf_async.weights.update import as_bytes

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
        for version in range(1, steps + 1):
            with torch.no_grad():
                model[2].weight[version] += 1
                model[1].running_mean += 1
            values.append(value(model))
            staged = await syncer.stage(model.state_dict(), version)
            with torch.no_grad():
                model[0].weight += 1  # what has been staged does not see it
            await staged.deliver(send)
        return values


class Rollout(Worker):
    async def roll(self, cfg: dict[str, object], steps: int) -> list[list[int]]:
        model, syncer = network(2), WeightSyncer.create(cfg)

        async def send(message: object) -> None:
            if self._rank == 0:
                await self.send(message, "trainer", 0)

        async def recv() -> object:
            return await self.broadcast(groups=EVERYBODY, src=("trainer", 0), options=syncer.comm_options)

        await syncer.init_receiver(model.state_dict(), recv, send)
        values = []
        for version in range(1, steps + 1):
            assert await syncer.apply(model, recv) == version
            values.append(value(model))
        return values


@pytest.mark.parametrize(
    "cfg",
    [
        {"type": "bucket", "bucket_size": 100_000, "bucket_device": "cuda"},
        {"type": "patch", "init_sync": {"enabled": True}, "use_ring_sync": True},
    ],
)
def test_two_rollout_workers_have_every_version_of_the_trainer(cfg: dict[str, object]) -> None:
    with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        trainer = Trainer.create_group().launch(cluster, NodePlacementStrategy([0]), name="trainer")
        rollout = Rollout.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="rollout")
        rolling = rollout.roll(cfg, 4)
        trained = trainer.train(cfg, 4).wait(timeout=60)[0]
        assert rolling.wait(timeout=60) == [trained, trained]
