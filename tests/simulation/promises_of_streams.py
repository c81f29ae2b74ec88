"""Promises of streams and of calls that any rank takes, as docs/calls.md has them."""

from __future__ import annotations

import asyncio
from typing import Any

from rlinf_async import ClosedError, DeadlineExceeded, PeerLost, WorkerDied, each, settings
from tests.simulation.strict import SOON_S, Scene, gather, in_task, promise, read_slowly

# -- streams ----------------------------------------------------------------------------------------------------------


@promise(1, 2, 3)
async def a_stream_is_ahead_by_its_credit_and_no_more(scene: Scene) -> None:
    window, count = int(settings.STREAM_ITEMS()), 60
    stream = aiter(scene.group.items("w", count))
    taken = [0] * scene.size
    for pause_at in sorted(scene.rng.sample(range(1, 40), 3)):
        while sum(taken) < pause_at * scene.size:
            rank, number = await anext(stream)
            scene.same(number, taken[rank], f"an item of rank {rank}")
            taken[rank] += 1
        await asyncio.sleep(1.0)
        for rank in range(scene.size):
            made = len(scene.seen("item", "w", rank))
            # It is noted before it waits for credit, which is granted for half a window at once.
            least = min(count, taken[rank] + window // 2 + 1)
            most = taken[rank] + window + 1
            scene.check(least <= made <= most, f"rank {rank}: {made} items, {taken[rank]} taken of {window}")
    async for rank, number in stream:
        scene.same(number, taken[rank], f"an item of rank {rank}")
        taken[rank] += 1
    scene.same(taken, [count] * scene.size, "items")
    scene.once(range(scene.size), "closed", "w")


@promise(1, 2, 3)
async def a_stream_that_is_left_is_closed_on_every_rank(scene: Scene) -> None:
    how = scene.rng.choice(("break", "aclose", "drop", "cancel", "timeout", "close"))
    stream = scene.group.items("w", 1000, scene.rng.choice((0.0, 0.05)))
    if how == "drop":
        await asyncio.sleep(scene.rng.choice((0.0, 0.5)))
        del stream
    elif how in ("cancel", "timeout"):
        reading = in_task(read_slowly(stream))
        del stream
        await asyncio.sleep(0.5)
        reading.cancel()
        await asyncio.wait([reading])
    else:
        await _read_some(stream, scene.rng.choice((1, 5)))
        if how == "aclose":
            await stream.aclose()
            scene.same(scene.ranks_of("closed", "w"), scene.ranks_of("begins", "w"), "closed behind aclose()")
        elif how == "close":
            stream.close()
    await asyncio.sleep(SOON_S)
    scene.same(scene.ranks_of("closed", "w"), scene.ranks_of("begins", "w"), f"closed after {how}")
    scene.same(scene.doubles("closed"), [], "closed twice")
    items = len(scene.seen("item"))
    await asyncio.sleep(0.5)
    scene.same(len(scene.seen("item")), items, "items of a stream that was left")


async def _read_some(stream: Any, count: int) -> None:
    async for _ in stream:
        count -= 1
        if not count:
            break


@promise(2, 3, 4)
async def the_error_of_a_stream_comes_behind_its_items(scene: Scene) -> None:
    bad = scene.rank()
    counts = [4 if rank == bad else 1000 for rank in range(scene.size)]
    found: list[tuple[int, int]] = []
    error = await scene.soon(gather(scene.group.items("w", each(counts), 0.05, [bad]), found), "the stream", 5.0)
    scene.is_error(error, LookupError, "the stream", f"on rank {bad}")
    scene.same([number for rank, number in found if rank == bad], [0, 1, 2], "items of the rank that fails")
    await asyncio.sleep(SOON_S)
    scene.once(range(scene.size), "closed", "w")


@promise(2, 3, 4)
async def a_death_ends_a_stream_behind_its_items(scene: Scene) -> None:
    victim = scene.rank()
    found: list[tuple[int, int]] = []
    reading = in_task(gather(scene.group.items("w", 1000, 0.05), found))
    only = in_task(gather(scene.group[scene.others(victim)[0]].items("other", 60, 0.05), []))
    await asyncio.sleep(1.0)
    scene.kill(victim)
    error = await scene.soon(reading, "the stream", 1.5)
    scene.is_error(error, WorkerDied, "the stream")
    scene.same(error.rank, victim, "the rank of the error")
    for rank in range(scene.size):
        numbers = [number for each, number in found if each == rank]
        scene.same(numbers, [*range(len(numbers))], f"items of rank {rank}")
    made = len(scene.seen("item", "w", victim))
    scene.check(len([1 for rank, _ in found if rank == victim]) >= made - 2, "items of the dead rank are missing")
    await asyncio.sleep(SOON_S)
    scene.once(scene.others(victim), "closed", "w")
    scene.same(await scene.soon(only, "another stream", 4.0), None, "a stream of another rank")


@promise(2, 3, call_timeout=1.0)
async def an_item_of_a_stream_has_the_deadline_of_a_call(scene: Scene) -> None:
    late, found = scene.rank(), list[Any]()
    pauses = [60.0 if rank == late else 0.6 for rank in range(scene.size)]
    counts = [5 if rank == late else 3 for rank in range(scene.size)]
    began = scene.now
    error = await scene.soon(gather(scene.group.items("w", each(counts), each(pauses)), found), "the stream", 6.0)
    scene.is_error(error, DeadlineExceeded, "the stream", f"rank {late} of")
    wanted = 1 + 3 * (scene.size - 1)
    scene.same(len(found), wanted, "items")
    expected = 1.0 if scene.size == 1 else 2.2
    scene.check(0.9 * expected <= scene.now - began < expected + 1.0, f"the deadline took {scene.now - began:.1f} s")
    await asyncio.sleep(SOON_S)
    scene.once(range(scene.size), "closed", "w")


# -- calls of any rank ------------------------------------------------------------------------------------------------


@promise(2, 3)
async def calls_of_any_rank_wait_for_room_in_order(scene: Scene) -> None:
    size, limit = scene.size, scene.rng.choice((1, 2))
    pool = scene.group.any(in_flight=limit)
    room = size * limit
    calls = [in_task(pool.stay(number, 1.0 + 0.1 * number)) for number in range(room)]
    waiting = [pool.stay(room + number, 0.3) for number in range(4)]
    tasks = [in_task(handle) for handle in waiting]
    await asyncio.sleep(0.5)
    begun = [each[2] for each in scene.seen("begins")]
    scene.same(sorted(begun), [*range(room)], "calls that begin at once")
    scene.same({begun.count(number) for number in begun}, {1}, "times that each begins")
    per_rank = [len(scene.seen("begins", rank=rank)) for rank in range(size)]
    scene.same(per_rank, [limit] * size, "calls of each rank")
    waiting[1].cancel()
    scene.is_error(await scene.soon(tasks[1], "a call that is given up"), ClosedError, "a call that is given up")
    await asyncio.wait(calls)
    for number, task in enumerate(tasks):
        if number != 1:
            found = await scene.soon(task, f"call {room + number}", 4.0)
            scene.same(found[1], room + number, "a call that waited")
    begun = [each[2] for each in scene.seen("begins")]
    scene.same(begun[room:], [room, room + 2, room + 3], "calls that waited, in order")
    ends = sorted((each[2] for each in scene.seen("ends")), key=str)
    scene.same(len(ends), room + 3, "calls that have ended")
    # All room is given back: the same crowd begins at once again.
    again = [in_task(pool.stay(f"again {number}", 0.1)) for number in range(room)]
    await asyncio.sleep(0.05)
    scene.same(len([1 for each in scene.seen("begins") if str(each[2]).startswith("again")]), room, "a second crowd")
    await asyncio.wait(again)


@promise(2, 3)
async def a_cancelled_call_of_any_rank_keeps_its_place_until_it_has_ended(scene: Scene) -> None:
    pool = scene.group.any(in_flight=1)
    running = [pool.block(number, 1.0) for number in range(scene.size)]
    behind = in_task(pool.stay("behind", 0.1))
    await asyncio.sleep(0.4)
    running[0].cancel()
    scene.is_error(await scene.soon(running[0], "a cancelled call"), ClosedError, "a cancelled call")
    await asyncio.sleep(0.3)
    scene.same(scene.seen("begins", "behind"), [], "calls beside a def method that runs on")
    scene.same((await scene.soon(behind, "the call behind it"))[1], "behind", "the call behind it")


@promise(3, 4)
async def equal_keys_go_to_one_rank_while_it_lives(scene: Scene) -> None:
    keys = ["a", "b", "c"]
    homes = {key: (await scene.group.any(key=key).block(key))[0] for key in keys}
    scene.same(len(set(homes.values())), 3, "ranks of three keys")
    await asyncio.gather(*(scene.group.any().stay("crowd", 0.5) for _ in range(scene.size - 1)))
    calls = [scene.group.any(key=key).stay(key, 0.2) for key in keys for _ in range(3)]
    for call, key in zip(calls, [key for key in keys for _ in range(3)], strict=True):
        scene.same(await call, (homes[key], key), "a call with a key")
    scene.kill(homes["a"])
    await asyncio.sleep(0.5)
    found = [(await scene.group.any(key="a").block("a"))[0] for _ in range(3)]
    scene.same(len(set(found)), 1, "ranks of a key whose rank is dead")
    scene.check(found[0] != homes["a"], "a key whose rank is dead goes there")
    scene.same((await scene.group.any(key="b").block("b"))[0], homes["b"], "the rank of another key")


@promise(2, 3)
async def calls_of_a_dead_rank_begin_once_elsewhere_if_they_may(scene: Scene) -> None:
    size, pool = scene.size, scene.group.any(in_flight=2)
    again = [in_task(pool.stay_again(f"again {number}", 2.0)) for number in range(size)]
    plain = [in_task(pool.stay(f"plain {number}", 2.0)) for number in range(size)]
    behind = in_task(pool.stay_again("behind", 0.1))
    await asyncio.sleep(0.5)
    victim = scene.rank()
    mine = {each[2] for each in scene.seen("begins", rank=victim)}
    scene.same(len(mine), 2, "calls at the victim")
    scene.kill(victim)
    for number in range(size):
        scene.same((await scene.soon(again[number], "an idempotent call", 8.0))[1], f"again {number}", "its result")
        found = await scene.soon(plain[number], "a plain call", 3.0)
        if f"plain {number}" in mine:
            scene.is_error(found, WorkerDied, "a plain call of the dead rank")
        else:
            scene.same(found[1], f"plain {number}", "a plain call of another rank")
        begun = len(scene.seen("begins", f"again {number}"))
        scene.same(begun, 2 if f"again {number}" in mine else 1, f"times that again {number} began")
    scene.same((await scene.soon(behind, "the call that waited"))[1], "behind", "the call that waited")
    for _ in range(2 * size):
        scene.check((await pool.block("later"))[0] != victim, "a later call goes to the dead rank")


@promise(2, 3)
async def a_call_is_begun_elsewhere_once_at_most(scene: Scene) -> None:
    """The second rank that dies with a call ends it."""
    call = in_task(scene.group.any().stay_again("w"))
    for _ in range(2):
        count = len(scene.seen("begins", "w"))
        await asyncio.sleep(0.5)
        begun = scene.seen("begins", "w")
        scene.check(len(begun) == max(count, 1), "the call has not begun")
        scene.kill(begun[-1][0])
        await asyncio.sleep(0.3)
    error = await scene.soon(call, "a call whose ranks have died", 1.0)
    scene.check(isinstance(error, PeerLost), f"a call whose ranks have died: {error!r}")
    scene.same(len(scene.seen("begins", "w")), 2, "times that it began")


@promise(2, 3)
async def a_silent_rank_loses_its_calls(scene: Scene) -> None:
    """New calls avoid it until it answers, and go there again afterwards."""
    pool = scene.group.any(stall_timeout=1.0)
    again, plain = pool.stay_again("again", 0.3), pool.stay("plain", 0.3)
    tasks = [in_task(again), in_task(plain)]
    await scene.until(1.0, lambda: len(scene.seen("begins")) == 2, "the calls have begun")
    (first,) = {each[0] for each in scene.seen("begins", "again")}
    (second,) = {each[0] for each in scene.seen("begins", "plain")}
    scene.check(first != second, "two calls went to one rank")
    victim = scene.rng.choice((first, second))
    scene.sim.stop(scene.name, victim, 6.0)
    began = scene.now
    found = [await scene.soon(task, "a call", 3.0) for task in tasks]
    if victim == first:
        scene.same(found[0][1], "again", "an idempotent call of a silent rank")
        scene.check(
            found[0][0] != victim and 0.9 <= scene.now - began < 2.0, f"{found} after {scene.now - began:.1f} s"
        )
    else:
        scene.is_error(found[1], DeadlineExceeded, "a plain call of a silent rank", f"rank {victim} of", "for 1 s")
    for _ in range(3):
        crowd = await asyncio.gather(*(pool.stay("crowd", 0.1) for _ in range(scene.size)))
        scene.check(victim not in {rank for rank, _ in crowd}, "a new call goes to the silent rank")
    await asyncio.sleep(8.0)
    crowd = await asyncio.gather(*(pool.stay("crowd", 0.1) for _ in range(scene.size)))
    scene.check(victim in {rank for rank, _ in crowd}, f"no call goes to rank {victim}, which has answered: {crowd}")
    scene.same(len(scene.seen("begins", "again")), 2 if victim == first else 1, "times that the call began")


@promise(2, 3)
async def a_stream_of_any_rank_goes_on_elsewhere(scene: Scene) -> None:
    how, found = scene.rng.choice(("kill", "stop")), list[int]()
    reading = in_task(gather(scene.group.any(stall_timeout=1.0).items_again("w", 12, 0.2), found))
    plain: list[int] = []
    await scene.until(3.0, lambda: len(found) >= 3, "items have come")
    victim = scene.seen("begins", "w")[0][0]
    other = in_task(gather(scene.group[victim].any().items("plain", 100, 0.2), plain))
    await asyncio.sleep(0.5)
    if how == "kill":
        scene.kill(victim)
    else:
        scene.sim.stop(scene.name, victim, 5.0)
    scene.same(await scene.soon(reading, "the stream", 8.0), None, "the stream")
    scene.same(found, [*range(12)], "its items")
    begun = scene.seen("begins", "w")
    scene.same(len(begun), 2, "times that it began")
    scene.check(begun[1][0] != victim and begun[1][3] == [*range(len(begun[1][3]))], f"it was resumed as {begun[1]}")
    if how == "kill":
        scene.is_error(await scene.soon(other, "a plain stream"), WorkerDied, "a plain stream")
        scene.same(plain, [*range(len(plain))], "items of a plain stream")
        scene.check(len(plain) >= 2, "items of a plain stream are missing")
    else:
        other.cancel()
        await asyncio.sleep(8.0)
        scene.same(scene.ranks_of("closed", "w"), sorted(each[0] for each in begun), "ranks where it was closed")


@promise(2, 3, restart="rank", max_restarts=100)
async def a_rank_that_is_back_takes_calls_of_any_rank(scene: Scene) -> None:
    """While it is away none goes there; one that waits goes there as soon as it is back."""
    victim, pool = scene.rank(), scene.group.any(in_flight=1)
    scene.kill(victim)
    await scene.until(1.0, lambda: bool(scene.group.away), "the death is told")
    running = [in_task(pool.stay_beside(number, 5.0)) for number in range(scene.size - 1)]
    waiting = in_task(pool.stay_beside("waits", 0.1))
    found = await scene.soon(waiting, "a call that waits for a rank to be back", 2.0)
    scene.same(found, (victim, "waits"), "a call that waits for a rank to be back")
    for each_ in running:
        scene.check((await each_)[0] != victim, "a call goes to a rank that is away")
    scene.same(scene.group.away, [], "ranks that are away")


@promise(1, 2, restart="rank", max_restarts=100)
async def where_all_ranks_are_away_calls_wait_for_the_first(scene: Scene) -> None:
    for rank in range(scene.size):
        scene.kill(rank)
    await scene.until(1.0, lambda: len(scene.group.away) == scene.size, "the deaths are told")
    calls = [in_task(scene.group.any().block(number)) for number in range(4)]
    for number, call in enumerate(calls):
        scene.same((await scene.soon(call, "a call", 3.0))[1], number, "a call while all ranks were away")
    for number in range(4):
        scene.same(len(scene.seen("begins", number)), 1, f"times that call {number} began")


@promise(1, 2, call_timeout=1.0)
async def the_time_for_room_counts(scene: Scene) -> None:
    pool, began = scene.group.any(in_flight=1), scene.now
    running = [in_task(pool.stay(number, 0.6)) for number in range(scene.size)]
    second = [in_task(pool.stay(f"second {number}", 0.6)) for number in range(scene.size)]
    third = in_task(pool.stay("third", 0.6))
    for each_ in running:
        scene.check(type(await scene.soon(each_, "a call")) is tuple, "a call within its time")
    for each_ in [*second, third]:
        scene.is_error(await scene.soon(each_, "a call"), DeadlineExceeded, "a call that waited", "within 1 s")
    scene.check(0.95 <= scene.now - began < 1.6, f"deadlines took {scene.now - began:.2f} s")
    await asyncio.sleep(SOON_S)
    scene.same(scene.seen("begins", "third"), [], "calls that begin behind their deadline")
    scene.same(len([1 for each in scene.seen("cancelled")]), scene.size, "calls that are cancelled")
    scene.same((await pool.stay("next", 0.1))[1], "next", "the next call")
