"""A worker whose watchdog tears everything down, and gathers its tasks: the watchdog among them."""

from __future__ import annotations

import asyncio

from rlinf_async import Cluster, NodePlacementStrategy, Worker


class Learner(Worker):
    async def run(self) -> None:
        self.steps = 0
        self.tasks = [asyncio.create_task(self.learn()), asyncio.create_task(self.watch())]
        await asyncio.wait(self.tasks)  # run waits for its tasks

    async def learn(self) -> None:
        while self.steps < 10:
            self.steps += 1
            await asyncio.sleep(0.01)

    async def watch(self) -> None:
        while self.steps < 10:
            await asyncio.sleep(0.01)
        await self.teardown()  # the watchdog tears down

    async def teardown(self) -> None:
        print("still", flush=True)
        await asyncio.gather(*self.tasks)  # the teardown waits for its own task


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        learner = Learner.create_group().launch(cluster, NodePlacementStrategy([0]), name="learner")
        await learner.run()  # the driver waits


if __name__ == "__main__":
    asyncio.run(main())
