"""An actor that asks the critic, which asks the actor: methods that run one at a time, in a circle."""

from __future__ import annotations

import asyncio

from rlinf_async import Cluster, NodePlacementStrategy, Worker, WorkerGroup


class Actor(Worker):
    def step(self) -> list[float]:
        print("still", flush=True)
        return WorkerGroup.from_group_name(Critic, "critic").value().wait()  # the actor waits for the critic

    def policy(self) -> float:
        return 0.1


class Critic(Worker):
    def value(self) -> float:
        (probability,) = WorkerGroup.from_group_name(Actor, "actor").policy().wait()  # the critic waits for the actor
        return 2 * probability


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        actor = Actor.create_group().launch(cluster, NodePlacementStrategy([0]), name="actor")
        critic = Critic.create_group().launch(cluster, NodePlacementStrategy([0]), name="critic")
        await critic
        await actor.step()  # the driver waits


if __name__ == "__main__":
    asyncio.run(main())
