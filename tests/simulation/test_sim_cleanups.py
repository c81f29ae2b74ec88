"""Cleanups of calls that were given up: what comes next does not interrupt them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlinf_async import Cluster, NodePlacementStrategy
from rlinf_async.testing import SimCluster
from tests.simulation import subject
from tests.simulation.careful import Careful
from tests.simulation.families import CREW


async def close(_: SimCluster, crew: Any, visitor: Any) -> None:
    await crew.close()


async def let_the_caller_die(sim: SimCluster, crew: Any, visitor: Any) -> None:
    sim.kill("visitor", 0)


async def let_the_caller_leave(_: SimCluster, crew: Any, visitor: Any) -> None:
    await visitor.close()


@pytest.mark.parametrize("second", [close, let_the_caller_die, let_the_caller_leave])
@pytest.mark.parametrize("method", ["tidy", "tidy_beside", "tidy_stream"])
def test_a_second_word_does_not_interrupt_the_cleanup_that_the_first_one_has_begun(method: str, second: Any) -> None:
    subject.clear()
    sim = SimCluster()

    async def main() -> None:
        async with Cluster(log_to_driver=False) as cluster:
            crew = Careful.create_group().launch(cluster, NodePlacementStrategy([0]), name=CREW)
            visitor = Careful.create_group().launch(cluster, NodePlacementStrategy([0]), name="visitor")
            await asyncio.gather(crew, visitor)
            call = visitor.have_tidied(0, method, "task", 1, 1.0)
            await asyncio.sleep(0.5)
            await second(sim, crew, visitor)
            await asyncio.wait([asyncio.ensure_future(call)])
            await asyncio.sleep(2)

    sim.run(main)
    assert [str(each) for each in subject.BOOK if each.kind == "k_clean"] == [f"{CREW}:0 k_clean [1] -> None"]


def test_a_caller_that_ends_does_not_interrupt_the_cleanup_that_the_end_of_its_callee_has_begun() -> None:
    subject.clear()

    async def main() -> None:
        async with Cluster(log_to_driver=False) as cluster:
            crew = Careful.create_group().launch(cluster, NodePlacementStrategy([0]), name=CREW)
            visitor = Careful.create_group().launch(cluster, NodePlacementStrategy([0]), name="visitor")
            await asyncio.gather(crew, visitor)
            call = visitor.have_tidied(0, "tidy", "nothing", 1, 1.0)
            await asyncio.sleep(0.5)
            closing = asyncio.ensure_future(crew.close())
            await asyncio.sleep(0.2)
            await asyncio.wait([closing, *map(asyncio.ensure_future, (visitor.close(), call))])

    SimCluster().run(main)
    assert [str(each) for each in subject.BOOK if each.kind == "k_clean"] == [f"{CREW}:0 k_clean [1] -> None"]
