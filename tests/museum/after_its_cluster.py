"""A script that has closed its cluster and come to its end, and does not end: a thread of it waits for metrics."""

from __future__ import annotations

import asyncio
import queue
import threading

from rlinf_async import Cluster, NodePlacementStrategy, Worker


class Actor(Worker):
    async def step(self) -> float:
        return 0.5


def write(metrics: queue.Queue[float]) -> None:
    while True:
        loss = metrics.get()  # the thread waits
        print(f"loss {loss}", flush=True)


async def main() -> None:
    metrics: queue.Queue[float] = queue.Queue()
    threading.Thread(target=write, args=(metrics,), name="metrics").start()
    async with Cluster(num_nodes=1) as cluster:
        actor = Actor.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="actor")
        for _ in range(3):
            metrics.put((await actor.step())[0])


if __name__ == "__main__":
    asyncio.run(main())
    print("still", flush=True)
