"""A receive from a rank that has died again and again, and comes back after a long pause."""

from __future__ import annotations

import asyncio
import os
import signal

from rlinf_async import Cluster, NodePlacementStrategy, Worker

DEATHS = 7
"""The pause before a restart is 0.1 s and doubles: 6.4 s before the last one."""


class Env(Worker):
    def pid(self) -> int:
        return os.getpid()

    def take(self) -> str:
        return str(self.recv("env", 0))

    def give(self) -> None:
        self.send("step", "env", 1)


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        group = Env.create_group().launch(cluster, NodePlacementStrategy([0, 0]), "env", restart="rank", max_restarts=9)
        for death in range(DEATHS):
            (pid,) = await group.execute_on(0).pid()
            if death == DEATHS - 1:
                taken = group.execute_on(1).take()
            os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.1)
        given = group.execute_on(0).give()
        assert await taken == ["step"]
        await given


if __name__ == "__main__":
    asyncio.run(main())
