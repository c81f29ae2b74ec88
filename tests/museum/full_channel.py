"""A driver that fills a channel with more than it holds before it starts whoever would empty it."""

from __future__ import annotations

import asyncio

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker


class Rollout(Worker):
    async def generate(self, prompts: Channel) -> list[str]:
        return [prompt async for prompt in prompts]


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        rollout = Rollout.create_group().launch(cluster, NodePlacementStrategy([0]), name="rollout")
        await rollout
        prompts = await Channel.create("prompts", maxsize=4)
        for number in range(6):
            if number == 4:
                print("still", flush=True)
            await prompts.put(f"{number} + 1")  # the driver waits for room
        await prompts.aclose()
        print(await rollout.generate(prompts))


if __name__ == "__main__":
    asyncio.run(main())
