"""Readers of one key on two nodes, while processes of the run are stopped for moments: all that changes is the time.

Stops bring together what otherwise passes by: gets that both have sent ahead, those that are called back meanwhile, and
those that nobody has asked for in so long that they go back by themselves.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker
from tests.histories.nemesis import children, nemesis

ITEMS = 200


class Reader(Worker):
    async def read(self, channel: Channel, count: int) -> list[int]:
        return [await channel.get() for _ in range(count)]


async def judge(rounds: int, seed: int) -> None:
    before = children()
    async with Cluster(num_nodes=2, local_nodes=2, log_to_driver=False) as cluster:
        group: Any = Reader.create_group().launch(cluster, NodePlacementStrategy([0, 1]), name="readers")
        await group
        async with nemesis(before, seed):
            for _ in range(rounds):
                async with asyncio.timeout(30), Channel.create("numbers", cluster=cluster) as channel:
                    for number in range(ITEMS):
                        await channel.put(number)
                    one, other = await group.read(channel, ITEMS // 2)
                assert sorted([*one, *other]) == list(range(ITEMS))
                assert one == sorted(one)
                assert other == sorted(other)


async def test_each_has_its_items_in_order_and_nobody_waits_for_ever() -> None:
    await judge(15, seed=1)


@pytest.mark.histories
@pytest.mark.parametrize("seed", range(4))
async def test_that_holds_a_thousand_times(seed: int) -> None:
    await judge(1000, seed)
