"""A step of four ranks of which one has much more to do: its data has one very long sequence."""

from __future__ import annotations

import asyncio
import os

from rlinf_async import Cluster, NodePlacementStrategy, Worker, each


class Actor(Worker):
    def step(self, lengths: list[int]) -> float:
        os.nice(19)
        return sum(self.loss(length) for length in lengths)

    def loss(self, length: int) -> float:
        if length > 1000:
            print("still", flush=True)
        return sum(1 / (position + 1) for position in range(length))  # computes for long


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        actor = Actor.create_group().launch(cluster, NodePlacementStrategy([0] * 4), name="actor")
        await actor.step(each([[100, 200], [300], [100, 10**12], [500]]))  # the driver waits


if __name__ == "__main__":
    asyncio.run(main())
