"""Sending side of messages, over simulated nodes."""

from __future__ import annotations

from typing import Any

import torch

from rlinf_async import Cluster, NodePlacementStrategy, Worker
from rlinf_async._simulation.small_limits import small_limits
from rlinf_async.testing import SimCluster

PLACES = [0, 0, 1, 1, 2]
"""Nodes of the ranks: one beside the source, and others on two more nodes, to which a large message is relayed."""


class Member(Worker):
    async def meet(self, nbytes: int) -> int:
        value = torch.arange(nbytes, dtype=torch.uint8) if self._rank == 0 else None
        groups = [("crew", list(range(self._world_size)))]
        found: Any = await self.broadcast(value, groups, src=("crew", 0), async_op=True, timeout=20)
        return int(found.sum(dtype=torch.int64))


def test_a_broadcast_that_is_relayed_reaches_the_ranks_beside_the_source_too() -> None:
    nbytes = 256 << 10

    async def main() -> Any:
        async with Cluster(log_to_driver=False) as cluster:
            crew = Member.create_group().launch(cluster, NodePlacementStrategy(PLACES), name="crew")
            return await crew.meet(nbytes)

    with small_limits() as settings:
        found = SimCluster(nodes=3, settings=settings).run(main)
    assert found == [255 * 128 * (nbytes // 256)] * len(PLACES)
