"""Two ranks of one process group, of which one evaluates already: all-gather on one side, broadcast on the other."""

from __future__ import annotations

import asyncio

import torch
import torch.distributed as dist

from rlinf_async import Cluster, NodePlacementStrategy, Worker


class Actor(Worker):
    def train(self, steps: int) -> None:
        dist.init_process_group("gloo")
        loss = torch.zeros(8)
        for _ in range(steps):
            dist.all_reduce(loss)
        if self._rank == 0:
            losses = [torch.zeros(8) for _ in range(2)]
            print("still", flush=True)
            dist.all_gather(losses, loss)  # rank 0 waits
        else:
            dist.broadcast(loss, src=0)  # rank 1 waits


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        actor = Actor.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="actor")
        await actor.train(3)  # the driver waits


if __name__ == "__main__":
    asyncio.run(main())
