"""Consumers that are killed with items, or give them back: the next one has the rest, each item once and in order."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
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


class Taker(Worker):
    sim: ClassVar[SimCluster]

    async def take(self, channel: Channel, count: int, way: str, cut: list[int]) -> list[int]:
        """Have so many items, and give more of them back; on a network that is cut in this moment."""
        found = []
        if way.startswith("loop"):
            async for item in channel.items(window=5 if way == "loop of five" else None):
                found.append(item)
                if len(found) == count:
                    self.cut(cut)
                    break
            return found
        if way == "get":
            forgotten = channel.get()
            await asyncio.sleep(1)
            self.cut(cut)
            del forgotten
            return []
        with contextlib.suppress(LookupError):
            async with channel.lease(count + 3) as items:
                await items.done(count)
                found += items[:count]
                self.cut(cut)
                raise LookupError
        return found

    def take_blocking(self, channel: Channel, count: int, way: str, cut: list[int]) -> list[int]:
        found = []
        for item in channel.items(window=5 if way == "loop of five" else None):
            found.append(item)
            if len(found) == count:
                self.cut(cut)
                break
        return found

    def cut(self, pair: list[int]) -> None:
        if pair:
            self.sim.cut_pair(*pair, 3.0)


# A call whose answer overtakes the items that it has given back hands the next caller later ones.
@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("way", ["loop", "loop of five", "lease", "get", "loop in a def"])
def test_items_that_a_call_gives_back_are_at_their_places_before_its_answer(way: str, is_cut: bool) -> None:
    async def main(first: int, second: int) -> list[int]:
        async with Cluster(log_to_driver=False) as cluster:
            channel = Channel.create("items", node_rank=1, cluster=cluster)
            for item in range(20):
                await channel.put(item)
            async with asyncio.timeout(60):
                spec = Taker.create_group()
                takers = await spec.launch(cluster, NodePlacementStrategy([first, second]), name="takers")
                pair = [first, 1] if is_cut and first != 1 else []
                method = "take_blocking" if way == "loop in a def" else "take"
                (found,) = await getattr(takers[0], method)(channel, 2, way, pair)
                return [*found, *(await takers[1].take(channel, 2, "loop", []))[0], *await channel.drain()]

    for seed, hosts in enumerate(itertools.product((0, 1, 2), repeat=2)):
        sim = Taker.sim = SimCluster(nodes=3, seed=seed)
        assert sim.run(main, *hosts) == [*range(20)]
