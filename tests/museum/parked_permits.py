"""A limit of two prompts at once, whose permits stay with the prompts that could not be parsed."""

from __future__ import annotations

import asyncio

from rlinf_async import Cluster, NodePlacementStrategy, Worker


class Rollout(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.slots = asyncio.Semaphore(2)

    async def generate(self, prompt: str) -> int:
        await self.slots.acquire()  # waits for a permit
        answer = int(prompt)
        self.slots.release()  # not reached by the prompts that fail
        return answer


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        rollout = Rollout.create_group().launch(cluster, NodePlacementStrategy([0]), name="rollout")
        prompts = ["1", "two", "3", "four", "5", "6"]
        async with asyncio.TaskGroup() as tasks:
            for prompt in prompts:
                tasks.create_task(ask(rollout, prompt))


async def ask(rollout: Rollout, prompt: str) -> None:
    try:
        print(await rollout.generate(prompt), flush=True)  # the driver waits
    except ValueError as error:
        print("still" if "four" in str(error) else error, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
