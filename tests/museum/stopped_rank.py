"""A rank that somebody has stopped: a debugger, a forgotten Ctrl-Z, an operator's kill -STOP."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from rlinf_async import Cluster, NodePlacementStrategy, Worker


class Rollout(Worker):
    def collect(self, steps: int) -> int:
        for step in range(steps):
            if self._rank == 1 and step == 5:
                print("still", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.1)  # the simulator
        return steps


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        rollout = Rollout.create_group().launch(cluster, NodePlacementStrategy([0] * 3), name="rollout")
        await rollout.collect(10)  # the driver waits


if __name__ == "__main__":
    asyncio.run(main())
