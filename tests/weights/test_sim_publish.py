"""``publish`` and ``follow`` in a simulated cluster: what happens between two steps of a send, a wait and a close."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import torch

from rlinf_async import ClosedError, Cluster, NodePlacementStrategy, WeightMismatch, Worker, follow, publish
from rlinf_async.testing import SimCluster, monotonic

WIDTH = 1 << 19  # packed in a thread: a send takes several turns of the loop


class End(Worker):
    """Trainer or follower."""

    def __init__(self) -> None:
        super().__init__()
        self.model = {"w": torch.zeros(WIDTH)}
        self.weights: Any = None

    async def play(self, script: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
        return await script(self, *arguments)


def simulated(script: Callable[[Any, Any], Coroutine[Any, Any, Any]]) -> Any:
    """What the script returns, which is given a trainer and a rollout worker; each group is of one rank."""
    sim = SimCluster(nodes=1, seed=1)

    async def main() -> Any:
        async with Cluster(log_to_driver=False) as cluster, asyncio.timeout(300):
            groups = [End.create_group().launch(cluster, NodePlacementStrategy([0]), name=name) for name in NAMES]
            return await script(*groups)

    return sim.run(main)


NAMES = ("trainer", "rollout")


async def follow_on(end: End, **options: Any) -> int:
    end.weights = await follow(end.model, of="trainer", **options).__aenter__()
    return int(end.weights.version)


async def close(end: End) -> None:
    await end.weights.close()


async def look(end: End) -> tuple[int, float]:
    async with end.weights.reading() as version:
        return version, float(end.model["w"][0])


async def read_twice(end: End) -> tuple[int, int, int]:
    """Enter twice in a row, so that one version is applied in between; then see what comes."""
    await follow_on(end)
    async with end.weights.reading() as first:
        await asyncio.sleep(2)
    async with end.weights.reading() as second:
        await asyncio.sleep(5)
    with contextlib.suppress(ClosedError):
        await end.weights.wait_version(100, 1.0)
    return first, second, end.weights.version


# -- a send while somebody waits for the delivery of the version before ------------------------------------------------


async def send_while_it_is_delivered(end: End) -> tuple[int, int, bool]:
    async with publish(end.model, to="rollout") as weights:
        await weights.delivered()
        await asyncio.sleep(1)
        await weights.send()
        delivering = weights.delivered()
        await weights.send()
        delivered, begun = await delivering, monotonic()
    return weights.version, delivered.version, monotonic() - begun > 4


def test_leaving_waits_for_the_version_that_was_sent_while_another_was_waited_for() -> None:
    async def script(trainer: Any, rollout: Any) -> Any:
        reading = rollout.play(read_twice)
        return await trainer.play(send_while_it_is_delivered), await reading

    assert simulated(script) == ([(3, 2, True)], [(1, 2, 3)])


async def fail_twice(end: End) -> list[int]:
    """Send two versions that do not fit any more, and note what each step raises of them."""
    told = []

    async def step(waiting: Any) -> None:
        try:
            await waiting
        except WeightMismatch as error:
            told.append(int(error.__notes__[-1].partition(" version ")[2].partition(":")[0]))

    async with publish(end.model, to="rollout") as weights:
        await weights.delivered()
        await asyncio.sleep(1)
        await weights.send()
        delivering = weights.delivered()
        await weights.send()
        await step(delivering)
        for _ in range(2):
            await asyncio.sleep(1)
            await step(weights.send())
        await step(weights.delivered())
    return told


async def misfit(end: End) -> None:
    await follow_on(end)
    async with end.weights.reading():
        await asyncio.sleep(2)
        end.model["w"] = torch.zeros(7)
    await asyncio.sleep(1)
    end.model["w"] = torch.zeros(WIDTH)
    with contextlib.suppress(ClosedError):
        await end.weights.wait_version(100, 10.0)


def test_each_failure_is_told_once_where_one_of_them_was_waited_for_meanwhile() -> None:
    async def script(trainer: Any, rollout: Any) -> Any:
        following = rollout.play(misfit)
        told = await trainer.play(fail_twice)
        await following
        return told

    assert simulated(script) == [[2, 3]]


# -- a follower that leaves and comes back -----------------------------------------------------------------------------


# -- closes ------------------------------------------------------------------------------------------------------------


async def wait_in_vain(end: End) -> str:
    weights = publish(end.model, to="rollout")
    await weights.send()
    delivering = weights.delivered()
    await asyncio.sleep(1)
    await weights.close()
    async with asyncio.timeout(1):
        try:
            await delivering
        except ClosedError as error:
            return str(error)
    return "delivered"


def test_a_close_ends_the_wait_for_ranks_that_do_not_follow() -> None:
    async def script(trainer: Any, _: Any) -> Any:
        return await trainer.play(wait_in_vain)

    (said,) = simulated(script)
    assert "is closed" in said
