"""A simulator in a process of its own that has died, and whose pipe is still open at its parent."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from multiprocessing.connection import Connection

from rlinf_async import Cluster, NodePlacementStrategy, Worker


def simulate(pipe: Connection) -> None:
    for step in range(100):
        action = pipe.recv()
        if step == 3:
            os._exit(139)  # the physics engine has crashed
        pipe.send(action + 1)


class Env(Worker):
    def rollout(self, steps: int) -> int:
        pipe, theirs = multiprocessing.Pipe()
        # `theirs` is not closed here, so the simulator's end is no end of file
        multiprocessing.get_context("fork").Process(target=simulate, args=(theirs,), daemon=True).start()
        state = 0
        for step in range(steps):
            pipe.send(state)
            if step == 3:
                print("still", flush=True)
            state = pipe.recv()  # waits for the simulator
        return state


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        env = Env.create_group().launch(cluster, NodePlacementStrategy([0]), name="env")
        print(await env.rollout(10), flush=True)  # the driver waits


if __name__ == "__main__":
    asyncio.run(main())
