"""Calls with an argument for each rank, of which some are away."""

from __future__ import annotations

import asyncio
import contextlib

from rlinf_async import Cluster, NodePlacementStrategy, Worker, WorkerDied, each
from rlinf_async.testing import SimCluster


class Echo(Worker):
    def echo(self, value: int) -> int:
        return value


def test_a_rank_that_is_away_keeps_no_argument_from_the_others() -> None:
    sim = SimCluster(nodes=2)

    async def main() -> list[int]:
        async with Cluster(log_to_driver=False) as cluster:
            placement = NodePlacementStrategy([0, 1, 1])
            group = Echo.create_group().launch(cluster, placement, name="echo", restart="rank")
            await group.echo(0)
            sim.kill("echo", 0)
            with contextlib.suppress(WorkerDied):
                await group[0].echo(0)
            async with asyncio.timeout(60):
                found: list[int] = await group.echo(each([1, 2, 3]))
            return found

    assert sim.run(main) == [1, 2, 3]
