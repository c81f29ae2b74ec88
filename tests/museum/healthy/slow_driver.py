"""A driver that takes its time between puts, in a coroutine, in its own event loop's way, and in a plain script."""

from __future__ import annotations

import asyncio
import time

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker


class Rollout(Worker):
    async def generate(self, prompts: Channel) -> list[str]:
        return [prompt async for prompt in prompts]

    def answer(self, prompts: Channel, number: int) -> list[str]:
        return [prompts.get() for _ in range(number)]


async def coroutine() -> None:
    async with Cluster(num_nodes=1) as cluster:
        rollout = Rollout.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="rollout")
        prompts = await Channel.create("prompts", maxsize=2)
        generated = rollout.generate(prompts)
        await prompts.put("1 + 1")
        await asyncio.sleep(4)
        await prompts.put("2 + 2")
        time.sleep(4)  # as somebody does who has to
        await prompts.put("3 + 3")
        await prompts.aclose()
        assert sum(len(each) for each in await generated) == 3


def script() -> None:
    with Cluster(num_nodes=1) as cluster:
        rollout = Rollout.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="rollout")
        prompts = Channel.create("prompts")
        answered = rollout.answer(prompts, 2)
        for number in range(4):
            time.sleep(3)
            prompts.put(number)
        answered.wait()


if __name__ == "__main__":
    asyncio.run(coroutine())
    script()
