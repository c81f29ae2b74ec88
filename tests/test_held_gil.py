"""A GIL that is held for seconds, in a worker and in the driver: what waits goes on waiting, and nothing is lost."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from typing import Any

import pytest

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker


class Holder(Worker):
    def hold_gil(self, seconds: int) -> int:
        ctypes.PyDLL(None).sleep(seconds)
        return seconds

    def pid(self) -> int:
        return os.getpid()

    async def echo(self, value: Any) -> Any:
        return value

    async def take(self, channel: Channel) -> Any:
        return await channel.get()


@pytest.mark.parametrize("seconds", [2, pytest.param(15, marks=pytest.mark.faults)])
@pytest.mark.parametrize("holder", ["worker", pytest.param("driver", marks=pytest.mark.slow)])
async def test_a_gil_that_is_held_for_seconds_costs_time_only(holder: str, seconds: int) -> None:
    async with Cluster(local_nodes=2, log_to_driver=False) as cluster:
        group = Holder.create_group().launch(cluster, NodePlacementStrategy([0, 1]), name="holders")
        pids = await group.pid()
        channel = await Channel.create("items", cluster=cluster, node_rank=1)
        taking = group.take(channel)
        began = time.monotonic()
        holding = None
        if holder == "worker":
            holding = group.hold_gil(seconds)
        else:
            ctypes.PyDLL(None).sleep(seconds)
        echoes = [group.echo(number) for number in range(50)]
        await asyncio.gather(channel.put("a"), channel.put("b"))
        assert sorted(await taking) == ["a", "b"]
        assert [await echo for echo in echoes] == [[number] * 2 for number in range(50)]
        if holding is not None:
            assert await holding == [seconds] * 2
        assert time.monotonic() - began >= seconds
        assert await group.pid() == pids
        await channel.close()
