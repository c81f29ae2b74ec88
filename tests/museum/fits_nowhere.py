"""An actor that wants eight devices where there are two."""

from __future__ import annotations

import asyncio

from rlinf_async import Cluster, PackedPlacementStrategy, Worker


class Actor(Worker):
    def step(self) -> int:
        return self._rank


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        print("still", flush=True)
        placement = PackedPlacementStrategy(0, 7)
        actor = Actor.create_group().launch(cluster, placement, name="actor")  # fits nowhere
        await actor.step()


if __name__ == "__main__":
    asyncio.run(main())
