"""Calls that any rank takes, in a simulated cluster: room, keys, deaths, stalls, streams, deadlines and the end."""

from __future__ import annotations

import asyncio
import contextlib
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


def test_a_conversation_stays_at_its_rank_while_that_lives() -> None:
    async def work(group: Any, sim: SimCluster) -> Any:
        ranks = [await group.any(key="a").generate("x") for _ in range(3)]
        sim.kill("r", ranks[0])
        await asyncio.sleep(1)
        return ranks, [await group.any(key="a").generate("x") for _ in range(3)]

    before, after = simulate(work)
    assert len({*before}) == len({*after}) == 1
    assert before[0] != after[0]


@pytest.mark.parametrize("restart", [None, "rank"])
def test_a_rank_that_dies_loses_its_calls_to_others_if_their_method_is_idempotent(restart: str | None) -> None:
    async def work(group: Any, sim: SimCluster) -> Any:
        calls = [group[1].any().score("again", 2.0), group[1].any().generate("once", 2.0)]
        others = [group.any().score("elsewhere", 2.0) for _ in range(3)]
        await asyncio.sleep(0.5)
        sim.kill("r", 1)
        began = monotonic()
        results = await asyncio.gather(*map(outcome, [*others, *calls]))
        more = await asyncio.gather(*(group.any().generate("x") for _ in range(6)))
        return results, set(more), monotonic() - began

    results, more, seconds = simulate(work, restart=restart)
    assert set(results[:3]) <= {0, 2}
    assert results[4][0] is WorkerDied
    if restart is None:
        assert results[3][0] is WorkerDied, "this view has no other rank"
        assert more == {0, 2}
        assert seconds < 3
    else:
        assert results[3] == 1, "it waits for the only rank of its view"
    assert len([name for _, name in RUNS if name == "once"]) == 1


def test_a_call_that_ends_two_workers_is_begun_no_third_time() -> None:
    async def work(group: Any, sim: SimCluster) -> Any:
        call = asyncio.ensure_future(outcome(group.any().score("poison", 5.0)))
        for _ in range(2):
            await asyncio.sleep(0.5)
            sim.kill("r", RUNS[-1][0])
        return await call

    kind, _ = simulate(work)
    assert kind is WorkerDied
    assert len(RUNS) == 2


def test_calls_of_ranks_that_live_do_not_wait_for_one_that_is_away() -> None:
    """A call to a named rank waits for the restart; one for any rank does not."""

    async def work(group: Any, sim: SimCluster) -> Any:
        for _ in range(3):  # the pauses before a restart grow
            sim.kill("r", 0)
            await asyncio.sleep(0.1)
            began = monotonic()
            ranks = await asyncio.gather(*(group.any().generate("x") for _ in range(6)))
            seconds = monotonic() - began
            await group.generate("all")
        back = await asyncio.gather(*(group.any().generate("x", 0.1) for _ in range(3)))
        return set(ranks), seconds, sorted(back)

    ranks, seconds, back = simulate(work, restart="rank", max_restarts=9)
    assert ranks == {1, 2}
    assert seconds < 0.1
    assert back == [0, 1, 2]


def test_where_all_ranks_are_away_calls_wait_for_the_first_one_that_is_back() -> None:
    async def work(group: Any, sim: SimCluster) -> Any:
        for rank in range(3):
            sim.kill("r", rank)
        await asyncio.sleep(0.05)
        call = group.any().generate("x")
        told, needs = call._describe(), call._needs()[0]
        return told, [target.kind.value for target in needs], await call in (0, 1, 2)

    told, needs, came = simulate(work, restart="rank")
    assert told.endswith("which waits for ranks 0-2 of 'r' to be there")
    assert needs == ["restart"]
    assert came


def test_calls_that_are_made_before_the_launch_is_done_begin_then() -> None:
    sim = SimCluster(nodes=1, seed=1)

    async def main() -> Any:
        async with Cluster(log_to_driver=False) as cluster:
            group = Rollout.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="r")
            return sorted(await asyncio.gather(*(group.any(in_flight=1).generate("x") for _ in range(4))))

    assert len(sim.run(main)) == 4


@pytest.mark.parametrize("method", ["score", "generate"])
def test_a_rank_that_hangs_loses_its_calls(method: str) -> None:
    async def work(group: Any, sim: SimCluster) -> Any:
        pool = group.any(stall_timeout=2.0)
        calls = [getattr(pool, method)(str(number), 1.0) for number in range(3)]
        await asyncio.sleep(0.5)
        sim.stop("r", 1, 20.0)
        began = monotonic()
        results = await asyncio.gather(*map(outcome, calls))
        seconds = monotonic() - began
        while_stopped = {*await asyncio.gather(*(group.any().generate("x", 0.1) for _ in range(4)))}
        await asyncio.sleep(20)
        back = {*await asyncio.gather(*(group.any().generate("y", 0.1) for _ in range(4)))}
        return results, seconds, while_stopped, back

    results, seconds, while_stopped, back = simulate(work)
    assert while_stopped == {0, 2}
    assert back == {0, 1, 2}, "it has been heard"
    if method == "score":
        assert sorted(map(str, results)) == sorted(map(str, [0, 2, next(rank for rank in results[1:] if rank != 1)]))
        assert all(rank in (0, 2) for rank in results)
        assert 1.5 <= seconds < 3.5
    else:
        (error,) = [result for result in results if isinstance(result, tuple)]
        text = (
            "r.generate() was given up: rank 1 of 'r' had given no answer and no item for 2 s (stall_timeout= of any())"
        )
        assert error == (DeadlineExceeded, text)


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


@pytest.mark.parametrize("fault", ["death", "stall"])
def test_a_stream_goes_on_at_another_rank_with_what_had_come(fault: str) -> None:
    async def work(group: Any, sim: SimCluster) -> Any:
        items = []
        async for item in group.any(stall_timeout=3.0).tokens(6):
            items.append(item)
            if len(items) == 3:
                if fault == "death":
                    sim.kill("r", item[0])
                else:
                    sim.stop("r", item[0], 30.0)
        return items

    items = simulate(work)
    assert [number for _, number in items] == list(range(6))
    first, second = items[0][0], items[-1][0]
    assert first != second
    began = [(first, "tokens from 0"), (second, "tokens from 3")]
    assert began == RUNS


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


def test_the_deadline_of_calls_holds_for_one_that_waits_and_one_that_runs() -> None:
    async def work(group: Any, sim: SimCluster) -> Any:
        pool = group[0].any(in_flight=1)
        running, waiting = pool.generate("x", 60.0), pool.generate("y")
        await asyncio.sleep(3.0)  # nobody awaits them
        return await outcome(running), await outcome(waiting), await outcome(read(pool.words(3)))

    running, waiting, stream = simulate(work, call_timeout=2.0)
    limit = "r.generate() was not done within 2 s (call_timeout= of launch()): "
    room = "it had not been sent, and waits for room at rank 0 of 'r', where each takes 1 call (in_flight= of any())"
    assert running[0] is waiting[0] is DeadlineExceeded
    assert running[1].startswith(limit + "rank 0 of 'r' had not answered by")
    assert waiting[1] == limit + room
    assert stream == [0, 1, 2], "the cancelled call has left its place"


def test_calls_that_wait_end_with_their_group() -> None:
    async def work(group: Any, sim: SimCluster) -> Any:
        calls = [group.any(in_flight=1).generate("x", 30.0) for _ in range(4)]
        stream = asyncio.ensure_future(outcome(read(group.any(in_flight=1).words(3))))
        await asyncio.sleep(0.1)
        await group.close()
        results = await asyncio.gather(*map(outcome, calls), stream)
        with contextlib.suppress(ClosedError):
            group.any()
            results.append("it was not refused")
        return results

    results = simulate(work)
    assert [kind for kind, _ in results] == [ClosedError] * 5
    assert results[3][1] == results[4][1] == "group 'r' was closed before a rank had room for the call"


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
