"""Two threads of a rank that take the same two locks in opposite order: the replay buffer's, and the policy's."""

from __future__ import annotations

import asyncio
import threading

from rlinf_async import Cluster, NodePlacementStrategy, Worker


class Learner(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.buffer, self.policy = threading.Lock(), threading.Lock()
        self.both = threading.Barrier(2)

    def learn(self) -> None:
        threading.Thread(target=self.refresh, name="refresher", daemon=True).start()
        with self.buffer:
            self.both.wait()
            print("still", flush=True)
            with self.policy:  # learn waits for the policy
                pass

    def refresh(self) -> None:
        with self.policy:
            self.both.wait()
            with self.buffer:  # the refresher waits for the buffer
                pass


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        learner = Learner.create_group().launch(cluster, NodePlacementStrategy([0]), name="learner")
        await learner.learn()  # the driver waits


if __name__ == "__main__":
    asyncio.run(main())
