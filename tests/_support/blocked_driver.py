"""A driver that takes the answer of a call, and blocks its event loop at once: it does not tell its daemon of that."""

from __future__ import annotations

import asyncio
import time

from rlinf_async import Cluster, NodePlacementStrategy, Worker


class Napper(Worker):
    def nap(self) -> None:
        time.sleep(0.1)


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        group = Napper.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="napper")
        for _ in range(3):  # the first goes by way of the daemon
            await group.nap()
        print("still", flush=True)
        time.sleep(1000)  # blocks the loop


if __name__ == "__main__":
    asyncio.run(main())
