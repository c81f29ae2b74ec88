"""A learner that wants eight episodes, of which the environments have brought six and gone."""

from __future__ import annotations

import asyncio
from typing import Any

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker


class Env(Worker):
    async def collect(self, episodes: Channel, number: int) -> None:
        for _ in range(number):
            await episodes.put({"rank": self._rank})


class Learner(Worker):
    async def learn(self, episodes: Channel, number: int) -> list[Any]:
        batch: list[Any] = []
        while len(batch) < number:
            if len(batch) == 6:
                print("still", flush=True)
            batch.append(await episodes.get())  # waits for an episode
        return batch


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        env = Env.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="env")
        learner = Learner.create_group().launch(cluster, NodePlacementStrategy([0]), name="learner")
        episodes = Channel.create("episodes")
        learned = learner.learn(episodes, 8)
        await env.collect(episodes, 3)
        await env.close()
        await learned  # the driver waits


if __name__ == "__main__":
    asyncio.run(main())
