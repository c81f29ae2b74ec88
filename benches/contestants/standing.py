"""Driver of a stuck run: launches ranks that sleep, prints their process ids, and blocks its loop."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from rlinf_async import Cluster, NodePlacementStrategy, Worker

SECONDS = 3600.0
SETTLE_S = 2.0


class Rank(Worker):
    def pid(self) -> int:
        return os.getpid()

    def sleep(self) -> None:
        time.sleep(SECONDS)


async def main(ranks: int) -> None:
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        group = Rank.create_group().launch(cluster, NodePlacementStrategy([0] * ranks), name="rank")
        pids = await group.pid()
        sleeping = group.sleep()
        await asyncio.sleep(SETTLE_S)  # until the call has reached all ranks
        print(*pids, flush=True)
        time.sleep(SECONDS)  # noqa: ASYNC251  a blocked loop is what it is for
        await sleeping


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
