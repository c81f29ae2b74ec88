"""Data that does not divide by two: one rank has a batch more, and reduces its gradient alone."""

from __future__ import annotations

import asyncio

import torch
import torch.distributed as dist

from rlinf_async import Cluster, NodePlacementStrategy, Worker, each


class Actor(Worker):
    def train(self, batches: list[float]) -> float:
        dist.init_process_group("gloo")
        gradient = torch.zeros(1)
        for number, batch in enumerate(batches):
            if number == 2:
                print("still", flush=True)
            gradient += batch
            dist.all_reduce(gradient)  # waits for the other rank
        return gradient.item()


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        actor = Actor.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="actor")
        await actor.train(each([[1.0, 2.0, 3.0], [4.0, 5.0]]))  # the driver waits


if __name__ == "__main__":
    asyncio.run(main())
