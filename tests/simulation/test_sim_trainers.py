"""``wanted()`` of an experience in a simulated cluster: a trainer that is given up, or that another node takes over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlinf_async import Cluster, Experience, NodePlacementStrategy, PeerLost, Worker
from rlinf_async.testing import SimCluster


class Trainer(Worker):
    async def set_version(self, experience: Experience, version: int) -> None:
        await experience.set_version(version)

    async def step(self, experience: Experience) -> None:
        async with experience.take():
            pass


async def paced(cluster: Cluster, node: int, trainer_node: int, **options: Any) -> tuple[Any, Experience, Any]:
    """Return a trainer, its experience, and a producer's wait, which lasts until the next version."""
    experience = await Experience.create("e", max_staleness=0, node_rank=node)
    placement = NodePlacementStrategy([trainer_node])
    trainer = Trainer.create_group().launch(cluster, placement, name="trainer", restart="rank", **options)
    await trainer.set_version(experience, 7)
    await experience.put("sample", version=7)
    await trainer.step(experience)
    return trainer, experience, experience.wanted()


def test_a_trainer_on_another_node_that_is_given_up_ends_the_waits_of_producers() -> None:
    sim = SimCluster(nodes=2, seed=1)

    async def main() -> None:
        async with Cluster(log_to_driver=False) as cluster:
            _, _, waiting = await paced(cluster, 1, 0, max_restarts=1)
            for _ in range(2):  # the one in its place dies before it has set a version
                sim.kill("trainer", 0)
                await asyncio.sleep(1.5)
            async with asyncio.timeout(60):
                with pytest.raises(PeerLost, match=r"(?s)rank 0 of group 'trainer' .* died more than 1 time"):
                    await waiting

    sim.run(main)


def test_producers_wait_on_for_a_trainer_that_is_started_on_another_node() -> None:
    sim = SimCluster(nodes=2, seed=1)

    async def main() -> int:
        async with Cluster(log_to_driver=False) as cluster:
            trainer, experience, waiting = await paced(cluster, 0, 1)
            sim.kill_node(1)
            await asyncio.sleep(60)
            async with asyncio.timeout(60):
                await trainer.set_version(experience, 3)
                version: int = await waiting
                return version

    assert sim.run(main) == 3
