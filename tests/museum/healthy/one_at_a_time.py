"""Four ranks of which one computes at a time, and three wait for it: in a barrier, a receive, for weights, a call."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from rlinf_async import Cluster, NodePlacementStrategy, Worker, WorkerGroup, follow, publish


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10000))


class Actor(Worker):
    def barriers(self, seconds: float) -> None:
        if self._rank == 3:
            compute(seconds)
        dist.init_process_group("gloo")
        for turn in range(2):
            if self._rank == turn:
                compute(seconds)
            dist.barrier()

    async def ring(self, seconds: float) -> Any:
        """Two turns of a token around the ranks."""
        others, token = "actor", 0
        for _ in range(2):
            if self._rank > 0:
                token = await self.recv(others, self._rank - 1)
            await asyncio.to_thread(compute, seconds / 4)
            await self.send(token + 1, others, (self._rank + 1) % 4)
            if self._rank == 0:
                token = await self.recv(others, 3)
        return token

    def train(self, seconds: float) -> None:
        with publish(torch.nn.Linear(2, 2), to="actor") as weights:
            compute(seconds)
            weights.send()

    def versions(self) -> None:
        with follow(torch.nn.Linear(2, 2), of="trainer") as weights:
            weights.wait_version(2)

    def chain(self, seconds: float) -> int:
        """Each rank calls the next one."""
        if self._rank == 3:
            compute(seconds)
            return 0
        (depth,) = WorkerGroup.from_group_name(Actor, "actor")[self._rank + 1 : self._rank + 2].chain(seconds).wait()
        return depth + 1


async def main(seconds: float) -> None:
    async with Cluster(num_nodes=1) as cluster:
        actor = Actor.create_group().launch(cluster, NodePlacementStrategy([0] * 4), name="actor")
        await actor.barriers(seconds)
        assert (await actor.ring(seconds))[0] == 8
        assert await actor[0:1].chain(seconds) == [3]
        trainer = Actor.create_group().launch(cluster, NodePlacementStrategy([0]), name="trainer")
        trained = trainer.train(seconds)
        await actor.versions()
        await trained


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
