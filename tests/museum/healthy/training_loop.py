"""Two environments, a channel, two trainers that reduce gradients and publish weights: as long as the argument says."""

from __future__ import annotations

import asyncio
import sys
import time

import torch
import torch.distributed as dist

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker, follow, publish


class Env(Worker):
    async def collect(self, episodes: Channel, number: int) -> None:
        policy = torch.nn.Linear(64, 64)
        async with follow(policy, of="trainer") as weights:
            for _ in range(number):
                async with weights.reading():
                    state = policy(torch.ones(64)).detach()
                await asyncio.sleep(0.2)  # the simulator
                await episodes.put(state)


class Trainer(Worker):
    def train(self, episodes: Channel, number: int) -> None:
        dist.init_process_group("gloo")
        model = torch.nn.Linear(64, 64)
        with publish(model, to="env") as weights:
            for step in range(number):
                episodes.get()
                time.sleep(2.5 if step % 8 == self._rank else 0.1)  # the other trainer waits in all_reduce meanwhile
                dist.all_reduce(model.weight.data)
                model.weight.data /= 2
                weights.send()


async def main(seconds: float) -> None:
    episodes_each = max(2, int(seconds / 0.7))
    async with Cluster(num_nodes=1) as cluster:
        env = Env.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="env")
        trainer = Trainer.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="trainer")
        episodes = await Channel.create("episodes", maxsize=4)
        async with asyncio.TaskGroup() as tasks:
            for handle in (env.collect(episodes, episodes_each), trainer.train(episodes, episodes_each)):
                tasks.create_task(done(handle))


async def done(handle: object) -> None:
    await handle  # type: ignore[misc]


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
