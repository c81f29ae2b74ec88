"""``order="rank"`` in a simulated cluster: a rank that is away holds up its own calls only, which keep their order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from rlinf_async import (
    ClosedError,
    Cluster,
    NodePlacementStrategy,
    Worker,
    WorkerDied,
    each,
    idempotent,
)
from rlinf_async._simulation import stand_ins
from rlinf_async.testing import SimCluster, monotonic

RUN: list[tuple[int, Any]] = []
"""By rank, what methods have run with; of all processes of a simulation."""

LARGE = bytes(200_000)
"""Rides on a descriptor."""


class Noted(Worker):
    def note(self, what: Any, padding: bytes = b"") -> tuple[int, Any]:
        RUN.append((self._rank, what))
        return self._rank, what

    async def hang(self) -> None:
        await asyncio.sleep(3600)

    async def count(self, times: int) -> AsyncIterator[int]:
        for number in range(times):
            yield number

    @idempotent
    async def again(self, what: Any) -> Any:
        await asyncio.sleep(0.05)
        return what


def play(main: Callable[[SimCluster, Any], Awaitable[Any]], cls: Any = Noted, seed: int = 1, **options: Any) -> Any:
    """Run ``main`` with a group of three ranks on two nodes."""
    sim = SimCluster(nodes=2, seed=seed)
    RUN.clear()

    async def run() -> Any:
        async with Cluster(log_to_driver=False) as cluster:
            group = cls.create_group().launch(
                cluster, NodePlacementStrategy([0, 0, 1]), name="noted", restart="rank", order="rank",
                **{"max_restarts": 50, **options},
            )  # fmt: skip
            await group
            async with asyncio.timeout(120):
                return await main(sim, group)

    return sim.run(run)


async def loop_in_crashes(sim: SimCluster, group: Any, rank: int, times: int) -> None:
    """Kill a rank as soon as it is back, until its pause is some seconds long."""
    for _ in range(times):
        sim.kill("noted", rank)
        while rank not in group.away:
            await asyncio.sleep(0.01)
        while sim.find("noted", rank) is None:
            await asyncio.sleep(0.01)
    sim.kill("noted", rank)
    while rank not in group.away:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("seed", range(3))
def test_no_call_overtakes_those_that_a_full_socket_still_owes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that had left for other ranks does not, nor one behind the cancel of a relayed call."""
    monkeypatch.setattr(stand_ins, "_SHARE_CUT_SHORT", 0.9)

    async def main(sim: SimCluster, group: Any) -> None:
        async def kill() -> None:
            sim.kill("noted", 1)
            while 1 not in group.away:
                await asyncio.sleep(0.001)

        await kill()
        await asyncio.gather(*(group[1].note(number) for number in range(5)), group.note(5), group[1].note(6))
        assert [what for rank, what in RUN if rank == 1] == [*range(7)]
        RUN.clear()
        await kill()
        hanging = group.hang()
        await group[1].note("it hangs")
        calls = [group[1].note(number) for number in range(9)]
        hanging.cancel()
        await asyncio.gather(*calls, group[1].note(9))
        assert [what for _, what in RUN] == ["it hangs", *range(10)]

    play(main, seed=seed)


def test_a_rank_does_not_wait_for_another_one_that_loops() -> None:
    told: list[tuple[int, ...]] = []

    async def main(sim: SimCluster, group: Any) -> None:
        group.on_restart(lambda restart: told.append(restart.ranks))
        await loop_in_crashes(sim, group, 1, 7)
        told.clear()
        sim.kill("noted", 2)
        began = monotonic()
        assert await group[2].again("back") == ["back"]
        assert monotonic() - began < 1
        assert group.away == [1]
        assert told == [(2,)]
        await group.note("all")
        assert told == [(2,), (1,)]

    play(main)


def test_a_rank_that_is_given_up_fails_its_calls_and_no_others() -> None:
    told: list[tuple[int, bool]] = []

    async def main(sim: SimCluster, group: Any) -> None:
        group.on_death(lambda died: told.append((died.rank, died.returns)))
        sim.kill("noted", 1)
        waiting = group.note(1, LARGE).outcomes()
        await asyncio.sleep(5)
        await waiting
        sim.kill("noted", 1)
        with pytest.raises(WorkerDied, match="died more than 1 time within 600 s"):
            await group[1].again(2)
        assert await group.execute_on(0, 2).note("x") == [(0, "x"), (2, "x")]
        assert group.away == []
        assert told == [(1, True), (1, True), (1, False)]
        await group.restart(1)
        assert await group.note("by hand") == [(rank, "by hand") for rank in range(3)]

    play(main, max_restarts=1)


def test_what_has_left_for_some_ranks_ends_with_its_caller_or_its_group() -> None:
    async def main(sim: SimCluster, group: Any) -> None:
        await loop_in_crashes(sim, group, 1, 5)
        given_up = group.note("given up", LARGE)
        stream = group.count(3)
        items = [item async for item in _first(stream, 6)]
        assert {rank for rank, _ in items} == {0, 2}
        stream.close()
        await asyncio.sleep(0.1)
        given_up.cancel()
        await group[1].note("last")
        assert [what for rank, what in RUN if rank == 1] == ["last"]
        await loop_in_crashes(sim, group, 1, 1)
        calls = [group.note("closed"), group.note(each(["closed"] * 3)), group[1].note("closed")]
        await asyncio.sleep(0.1)
        await group.close()
        for call in calls:
            with pytest.raises(ClosedError):
                await call

    play(main)


class Stored(Worker):
    def __init__(self) -> None:
        super().__init__()
        RUN.append((self._rank, self.find_store()))

    def find_store(self) -> tuple[str, str]:
        return os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]


@pytest.mark.parametrize("seed", range(3))
def test_ranks_of_a_lost_node_are_constructed_with_the_new_store(seed: int) -> None:
    sim = SimCluster(nodes=3, seed=seed)
    RUN.clear()

    async def run() -> None:
        async with Cluster(log_to_driver=False) as cluster:
            placement = NodePlacementStrategy([1, 1, 1, 2])
            group: Any = Stored.create_group().launch(cluster, placement, name="noted", restart="rank", order="rank")
            (before,) = set(await group.find_store())
            sim.kill_node(1)
            while not group.away:
                await asyncio.sleep(0.1)
            while group.away:
                await asyncio.sleep(0.1)
            (after,) = set(await group.find_store())
            assert before != after
            assert RUN[4:] == [(rank, after) for rank, _ in RUN[4:]]
            assert sorted(rank for rank, _ in RUN[4:]) == [0, 1, 2]

    sim.run(run)


async def _first(stream: Any, count: int) -> AsyncIterator[Any]:
    async for item in stream:
        yield item
        count -= 1
        if not count:
            return


def test_a_stream_reaches_the_rank_that_was_away() -> None:
    async def main(sim: SimCluster, group: Any) -> None:
        await loop_in_crashes(sim, group, 1, 2)
        items = [item async for item in group.count(30)]
        assert sorted(items) == [(rank, number) for rank in range(3) for number in range(30)]

    play(main)
