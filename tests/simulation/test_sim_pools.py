"""Calls that any rank takes, in a simulated cluster: room, keys, deaths, stalls, streams, deadlines and the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from rlinf_async import (
    ClosedError,
    Cluster,
    DeadlineExceeded,
    NodePlacementStrategy,
    Worker,
    WorkerDied,
    WorkerGroup,
    idempotent,
)
from rlinf_async.testing import SimCluster, monotonic, sleep

RUNS: list[tuple[int, str]] = []
"""By rank, the calls that have begun, in all processes of a simulation."""


class Rollout(Worker):
    _found: Any = None

    async def generate(self, name: str, seconds: float = 0.0) -> int:
        RUNS.append((self._rank, name))
        await asyncio.sleep(seconds)
        return self._rank

    @idempotent
    async def score(self, name: str, seconds: float = 0.0) -> int:
        return await self.generate(name, seconds)

    def _hidden(self) -> None:
        pass

    async def use(self, name: str, count: int) -> list[int]:
        if self._found is None:
            self._found = await WorkerGroup.from_group_name(Rollout, name)
        ranks: list[int] = await asyncio.gather(*(self._found.any().score("x", 0.02) for _ in range(count)))
        return ranks

    async def fail(self) -> None:
        raise ValueError("no")

    @idempotent
    async def tokens(self, count: int, *, resume: Any = ()) -> AsyncIterator[tuple[int, int]]:
        RUNS.append((self._rank, f"tokens from {len(resume)}"))
        for number in range(len(resume), count):
            yield self._rank, number
            await asyncio.sleep(1)

    async def words(self, count: int) -> AsyncIterator[int]:
        for number in range(count):
            yield number
            await asyncio.sleep(1)


def simulate(work: Callable[[Any, SimCluster], Coroutine[Any, Any, Any]], ranks: int = 3, **options: Any) -> Any:
    """What the work returns, which gets a group on one node."""
    RUNS.clear()
    sim = SimCluster(nodes=1, seed=3)

    async def main() -> Any:
        async with Cluster(log_to_driver=False) as cluster:
            group = Rollout.create_group().launch(cluster, NodePlacementStrategy([0] * ranks), name="r", **options)
            await group
            return await work(group, sim)

    return sim.run(main)


async def outcome(awaitable: Any) -> Any:
    """A result, or the type and first line of an error."""
    try:
        return await awaitable
    except Exception as error:
        return type(error), str(error).partition("\n")[0]


async def read(stream: Any) -> list[Any]:
    return [item async for item in stream]


def test_calls_spread_and_each_gives_one_result() -> None:
    async def work(group: Any, sim: SimCluster) -> Any:
        together = await asyncio.gather(*(group.any().generate("x", 1.0) for _ in range(6)))
        view = await asyncio.gather(*(group.execute_on(2, 1).any().generate("y", 1.0) for _ in range(4)))
        return sorted(together), view, await read(group.any().words(3)), await outcome(group.any().fail())

    together, view, items, error = simulate(work)
    assert together == [0, 0, 1, 1, 2, 2]
    assert sorted(view) == [1, 1, 2, 2]
    assert items == [0, 1, 2]
    assert error == (ValueError, "no")


def test_where_all_are_full_calls_wait_in_their_order_and_say_so() -> None:
    async def work(group: Any, sim: SimCluster) -> Any:
        pool = group.any(in_flight=1)
        began = monotonic()
        calls = [pool.generate(str(number), 1.0) for number in range(7)]
        told = calls[5]._describe()
        needs, every = calls[5]._needs()
        calls[4].cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        return told, len(needs), every, results, monotonic() - began

    told, needs, every, results, seconds = simulate(work)
    assert told == (
        "r.generate() on any rank, which waits for room at ranks 0-2 of 'r', where each takes 1 call "
        "(in_flight= of any())"
    )
    assert (needs, every) == (3, False), "one of the three answers is enough"
    assert isinstance(results.pop(4), ClosedError)
    names = [name for _, name in RUNS]
    assert (sorted(names[:3]), sorted(names[3:])) == (["0", "1", "2"], ["3", "5", "6"])
    assert 2.0 <= seconds < 2.5


def test_no_rank_hangs_while_one_stands_in_the_debugger() -> None:
    async def work(group: Any, sim: SimCluster) -> Any:
        events = group._members.client.events
        calls = [group.any(stall_timeout=2.0).generate("x", 9.0 + rank) for rank in range(2)]
        for begins, where in ((1.0, "t.py:3 in f()"), (7.0, ""), (0.5, "t.py:4 in f()"), (7.0, "")):
            await asyncio.sleep(begins)
            events.announce("debugger", {"endpoint": 7, "where": where, "attached": True})
            resumed = monotonic()
        with pytest.raises(DeadlineExceeded):
            await group.any(stall_timeout=2.0).generate("y", 60.0)
        return await asyncio.gather(*calls), monotonic() - resumed

    ranks, seconds = simulate(work, ranks=2)
    assert ranks == [0, 1]
    assert 2.0 <= seconds < 2.2


def test_a_rank_that_answers_other_calls_does_not_hang() -> None:
    async def work(group: Any, sim: SimCluster) -> Any:
        pool = group.any(stall_timeout=1.5)
        long = pool.generate("long", 6.0)
        for _ in range(6):
            await pool.generate("short", 1.0)
        return await long

    assert simulate(work, ranks=1) == 0


@pytest.mark.parametrize(("fault", "kind"), [("death", WorkerDied), ("stall", DeadlineExceeded)])
def test_a_stream_that_cannot_be_resumed_fails_behind_what_had_come(fault: str, kind: type[Exception]) -> None:
    async def work(group: Any, sim: SimCluster) -> Any:
        items = []
        try:
            async for item in group[0].any(stall_timeout=2.0).words(6):
                items.append(item)
                if item == 2:
                    if fault == "death":
                        sim.kill("r", 0)
                    else:
                        sim.stop("r", 0, 30.0)
        except kind:
            return items
        raise AssertionError("it has not failed")

    assert simulate(work) == [0, 1, 2]


def test_a_consumer_that_is_slow_makes_no_rank_silent() -> None:
    async def work(group: Any, sim: SimCluster) -> Any:
        items = []
        async for item in group.any(stall_timeout=2.0).tokens(20):
            items.append(item)
            if len(items) in (1, 10):
                await asyncio.sleep(40)
        return items

    items = simulate(work)
    assert len(items) == 20
    assert len({rank for rank, _ in items}) == 1


def test_a_consumer_whose_loop_stands_still_while_it_waits_makes_no_rank_silent() -> None:
    def main() -> Any:
        with Cluster(log_to_driver=False) as cluster:
            group = Rollout.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="r")

            async def consume() -> Any:
                items = []
                async for item in group.any(stall_timeout=2.0).tokens(20):
                    items.append(item)
                    if len(items) == 1:  # the next one comes while something else holds this loop up
                        asyncio.get_running_loop().call_later(0.5, sleep, 40)
                return items

            return asyncio.run(consume())

    RUNS.clear()
    items = SimCluster(nodes=1, seed=3).run(main)
    assert [number for _, number in items] == [*range(20)]
    assert [name for _, name in RUNS] == ["tokens from 0"]


def test_a_stream_that_waits_or_runs_is_closed_when_its_loop_is_left() -> None:
    async def work(group: Any, sim: SimCluster) -> Any:
        pool = group[0].any(in_flight=1)
        running = pool.tokens(50)
        async for _ in running:
            break
        await running.aclose()
        held = pool.generate("held", 2.0)
        waiting = pool.tokens(3)
        began = monotonic()
        await waiting.aclose()
        seconds = monotonic() - began
        await held
        return seconds, await pool.generate("after")

    seconds, after = simulate(work)
    assert seconds < 0.1
    assert after == 0
    assert [name for _, name in RUNS] == ["tokens from 0", "held", "after"]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"in_flight": 0}, ValueError, "in_flight=0 of any() is no number of calls: write a whole number from 1 on"),
        ({"in_flight": True}, ValueError, "in_flight=True of any() is no number of calls"),
        ({"stall_timeout": 0}, ValueError, "stall_timeout=0 of any() is no number of seconds: write one above 0"),
        ({"key": ["a"]}, TypeError, "key=['a'] of any() cannot be hashed (list): pass a name, a number or a tuple"),
    ],
)
def test_options_out_of_bounds_are_one_sentence(options: dict[str, Any], error: type, text: str) -> None:
    async def work(group: Any, sim: SimCluster) -> Any:
        with pytest.raises(error) as caught:
            group.any(**options)
        return str(caught.value)

    told = simulate(work, ranks=1)
    assert told.startswith(text)
    assert "\n" not in told


def test_names_that_are_no_methods_are_refused_as_by_the_group() -> None:
    async def work(group: Any, sim: SimCluster) -> Any:
        with pytest.raises(AttributeError, match=r"Rollout has no public method 'generat'.*generate"):
            group.any().generat()
        with pytest.raises(ValueError, match="_hidden of Rollout is hidden"):
            group.any()._hidden()

    simulate(work, ranks=1)


def test_a_worker_has_pool_calls_on_a_group_that_it_has_found() -> None:
    """Its process is told of deaths and returns."""
    sim = SimCluster(nodes=1, seed=3)

    async def main() -> Any:
        async with Cluster(log_to_driver=False) as cluster:
            place = NodePlacementStrategy([0, 0, 0])
            group = Rollout.create_group().launch(cluster, place, name="r", restart="rank")
            user = Rollout.create_group().launch(cluster, NodePlacementStrategy([0]), name="user")
            await group
            found = []
            for killed in (False, True, False):
                if killed:
                    sim.kill("r", 0)
                    await asyncio.sleep(0.05)
                found += await user.use("r", 6)
                await group.generate("all are there")
            return [{*ranks} for ranks in found]

    assert sim.run(main) == [{0, 1, 2}, {1, 2}, {0, 1, 2}]
