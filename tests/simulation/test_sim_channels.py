"""Consumers that are killed at once when they have an item: no other consumer has it too, and none misses the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker, WorkerDied
from rlinf_async.testing import SimCluster


async def gets(channel: Channel) -> AsyncIterator[Any]:
    while True:
        yield await channel.get()


class Mortal(Worker):
    had: ClassVar[list[int]] = []
    sim: ClassVar[SimCluster]

    async def have_and_die(self, channel: Channel, count: int, way: str) -> None:
        items = gets(channel) if way == "get" else channel.items(window=None if way == "loop" else 3)
        async for item in items:
            self.had.append(item)
            if len(self.had) == count:
                self.sim.kill("mortal", 0)
                await asyncio.sleep(60)


@pytest.mark.parametrize("way", ["get", "loop", "loop of three"])
@pytest.mark.parametrize("hosts", [(0, 0), (1, 1), (0, 1), (1, 0)], ids=repr)
def test_what_a_consumer_has_when_it_is_killed_is_its_own(hosts: tuple[int, int], way: str) -> None:
    sim = Mortal.sim = SimCluster(nodes=2, seed=1)
    node, consumer = hosts

    async def main(count: int) -> Any:
        Mortal.had.clear()
        async with Cluster(log_to_driver=False) as cluster:
            channel = Channel.create("items", node_rank=node, cluster=cluster)
            for item in range(12):
                await channel.put(item)
            async with asyncio.timeout(20):
                mortal = Mortal.create_group().launch(cluster, NodePlacementStrategy([consumer]), name="mortal")
                with pytest.raises(WorkerDied):
                    await mortal.have_and_die(channel, count, way)
                rest = await channel.get_many(12 - count)
            assert (await channel.stats()).dropped == {}
            return rest

    for count in (1, 2, 5, 9):
        assert sim.run(main, count) == [*range(count, 12)]
        assert Mortal.had == [*range(count)]
        sim = Mortal.sim = SimCluster(nodes=2, seed=count)
