"""Streams of which one side waits for the other: slow ranks, a slow consumer, and ranks that share a device."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from rlinf_async import Cluster, FlexiblePlacementStrategy, Worker

SECONDS = 5.0


class Rollout(Worker):
    async def generate(self, pauses: list[float]) -> AsyncIterator[int]:
        for number, pause in enumerate(pauses):
            await asyncio.sleep(pause)
            yield number

    async def use_the_device(self) -> None:
        async with self.device_lock:
            await asyncio.sleep(SECONDS)


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        rollout = Rollout.create_group().launch(cluster, FlexiblePlacementStrategy([[0], [0]]), name="rollout")
        async with rollout.generate([SECONDS] * 2) as stream:
            assert len([item async for item in stream]) == 4
        async with rollout.generate([0.0] * 100) as stream:  # far more than may be under way
            received = 0
            async for _ in stream:
                received += 1
                await asyncio.sleep(SECONDS if received in (1, 50) else 0)
            assert received == 200
        await rollout.use_the_device()


if __name__ == "__main__":
    asyncio.run(main())
