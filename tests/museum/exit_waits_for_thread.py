"""A script that has come to its end, and a thread of it that waits for the next metrics to write."""

from __future__ import annotations

import queue
import threading

from rlinf_async import Cluster, NodePlacementStrategy, Worker


class Actor(Worker):
    def step(self) -> float:
        return 0.5


def write(metrics: queue.Queue[float]) -> None:
    while True:
        loss = metrics.get()  # the thread waits
        print(f"loss {loss}", flush=True)


def main() -> None:
    metrics: queue.Queue[float] = queue.Queue()
    threading.Thread(target=write, args=(metrics,), name="metrics").start()
    cluster = Cluster(num_nodes=1)
    actor = Actor.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="actor")
    for _ in range(3):
        metrics.put(actor.step().wait()[0])


if __name__ == "__main__":
    main()
    print("still", flush=True)
