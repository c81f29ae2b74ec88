"""Promises of calls, as docs/calls.md has them, each shown with at most one fault."""

from __future__ import annotations

import asyncio
from typing import Any

from rlinf_async import ClosedError, DeadlineExceeded, NodePlacementStrategy, WorkerDied, each, wait_all
from tests.simulation.strict import LONG_S, SOON_S, Scene, Strict, gather, in_task, outcome, promise, read_slowly, turns

LARGE = bytes(70_000)
"""Rides on a descriptor."""


# -- calls ------------------------------------------------------------------------------------------------------------


@promise(2, 3)
async def calls_run_in_order_and_cancelled_ones_never(scene: Scene) -> None:
    first = scene.group.block("first", 1.0)
    await asyncio.sleep(0.3)
    made: dict[int, list[int]] = {rank: [] for rank in range(scene.size)}
    calls = []
    for number in range(10):
        ranks = scene.rng.choice((range(scene.size), [scene.rank()], scene.two_ranks()))
        view = scene.group.execute_on(*ranks)
        handle = view.block(number, 0.0, scene.rng.choice((b"", LARGE)))
        calls.append((number, list(ranks), handle))
        if scene.rng.random() < 0.3:
            await turns(scene.rng.randrange(4))
    given_up = set(scene.rng.sample(range(10), 3))
    for number, ranks, handle in calls:
        if number in given_up:
            handle.cancel()
        else:
            for rank in ranks:
                made[rank].append(number)
    scene.same(await first, scene.of_all("first"), "the first call")
    for number, ranks, handle in calls:
        found = await scene.soon(handle, f"call {number}")
        if number in given_up:
            scene.is_error(found, ClosedError, f"call {number}", "by handle.cancel()")
        else:
            scene.same(found, [(rank, number) for rank in ranks], f"call {number}")
    for rank, numbers in made.items():
        begun = [each[2] for each in scene.seen("begins", rank=rank)]
        scene.same(begun, ["first", *numbers], f"calls of rank {rank}")


@promise(3, 4)
async def results_come_as_the_table_says(scene: Scene) -> None:
    size = scene.size
    naps = [0.2 + 0.3 * place for place in scene.rng.sample(range(size), size)]
    handle = scene.group.stay(each([f"w{rank}" for rank in range(size)]), each(naps))
    slot, began = scene.rank(), scene.now
    scene.same(await handle[slot], (slot, f"w{slot}"), f"handle[{slot}]")
    scene.check(scene.now - began < naps[slot] + 0.15, f"handle[{slot}] took {scene.now - began:.2f} s")
    order = []
    async for rank, _ in handle.as_completed():
        order.append(rank)
        scene.check(scene.now - began < max(naps[rank], naps[slot]) + 0.15, f"rank {rank} came late")
    scene.same(order, sorted(range(size), key=naps.__getitem__), "as_completed()")
    scene.same(await handle, [(rank, f"w{rank}") for rank in range(size)], "the results")
    ranks = scene.rng.sample(range(size), 2)
    scene.same(await scene.group.execute_on(*ranks).block("v"), [(rank, "v") for rank in ranks], "a view")
    together = await wait_all(scene.group.stay("x", 0.2), scene.group[slot].stay("y", 0.1))
    scene.same(together, [[(rank, "x") for rank in range(size)], [(slot, "y")]], "wait_all()")


@promise(3, 4)
async def the_first_error_cancels_the_other_ranks(scene: Scene) -> None:
    bad, began = scene.rank(), scene.now
    method = scene.rng.choice(("stay", "stay_beside"))
    naps = [0.3 if rank == bad else LONG_S for rank in range(scene.size)]
    handle = getattr(scene.group, method)("w", each(naps), [bad])
    beside = scene.group.stay("beside", 3.0)
    scene.is_error(await scene.soon(handle, "the call"), LookupError, "the call", f"on rank {bad}")
    scene.check(scene.now - began < 1.0, f"the error took {scene.now - began:.1f} s")
    await asyncio.sleep(SOON_S)
    scene.once(scene.others(bad), "cancelled", "w")
    scene.same(await beside, scene.of_all("beside"), "a call beside it")


@promise(3, 4)
async def an_error_cancels_all_calls_of_one_wait(scene: Scene) -> None:
    bad = scene.rank()
    good = [scene.group.stay("one"), scene.group[scene.rank()].stay_beside("two")]
    wait = wait_all(good[0], scene.group[bad].stay("bad", 0.3, [bad]), good[1])
    scene.is_error(await scene.soon(wait, "the wait"), LookupError, "the wait", f"on rank {bad}")
    await asyncio.sleep(SOON_S)
    scene.same(scene.ranks_of("cancelled", "one"), [*range(scene.size)], "ranks of one")
    scene.same(len(scene.seen("cancelled", "two")), 1, "cancels of two")


@promise(3, 4)
async def outcomes_are_of_all_ranks_whoever_fails(scene: Scene) -> None:
    bad = set(scene.two_ranks())
    outcomes = await scene.soon(scene.group.stay("w", 0.5, [*bad]).outcomes(), "the outcomes")
    scene.same([each.rank for each in outcomes], [*range(scene.size)], "their ranks")
    for each_ in outcomes:
        if each_.rank in bad:
            scene.is_error(each_.error, LookupError, "an outcome", f"on rank {each_.rank}")
        else:
            scene.same((each_.ok, each_.value), (True, (each_.rank, "w")), "an outcome")
    scene.once(scene.others(*bad), "ends", "w")


@promise(2, 3)
async def the_deadline_of_a_wait_ends_the_wait_alone(scene: Scene) -> None:
    handle, began = scene.group.stay("w", 1.0), scene.now
    error = await scene.soon(handle.async_wait(timeout=0.3), "the wait")
    scene.is_error(error, DeadlineExceeded, "the wait", "rank")
    scene.check(0.29 <= scene.now - began < 0.9, f"the deadline took {scene.now - began:.2f} s")
    scene.same(await scene.soon(handle, "the call"), scene.of_all("w"), "the call")
    scene.same(scene.seen("cancelled"), [], "cancels")


@promise(2, 3)
async def a_timeout_cancels_on_every_rank_once(scene: Scene) -> None:
    method = scene.rng.choice(("stay", "stay_beside"))
    began, found = scene.now, None
    try:
        async with asyncio.timeout(scene.rng.choice((0.0, 0.01, 0.4))):
            await getattr(scene.group, method)("w")
    except TimeoutError as error:
        found = error
    scene.is_error(found, TimeoutError, "the call")
    scene.check(scene.now - began < 0.6, "the timeout took long")
    await asyncio.sleep(SOON_S)
    begun = scene.ranks_of("begins", "w")
    scene.same(scene.ranks_of("cancelled", "w"), begun, "ranks where it is cancelled, of those where it began")
    scene.same(await scene.soon(scene.group.block("next"), "the next call"), scene.of_all("next"), "")


@promise(2, 3, call_timeout=1.0)
async def each_call_has_its_own_deadline(scene: Scene) -> None:
    late = scene.rank()
    naps = [LONG_S if rank == late else 0.05 for rank in range(scene.size)]
    calls = []
    for number in range(3):
        calls.append((scene.now, number, in_task(scene.group.stay(number, each(naps)))))
        short = in_task(scene.group.stay(f"short {number}", 0.1))
        await asyncio.sleep(0.4)
        scene.same(await short, scene.of_all(f"short {number}"), "a short call")
    for began, number, call in calls:
        error = await scene.soon(call, f"call {number}")
        took = scene.now - began
        scene.is_error(error, DeadlineExceeded, f"call {number}", "within 1 s (call_timeout=", f"rank {late} of")
        others = [rank for rank in scene.others(late) if f"rank {rank} of" in str(error)]
        scene.same(others, [], f"ranks that call {number} names though they have answered")
        scene.check(0.97 <= took < 1.6 or number == 0, f"call {number} took {took:.2f} s")
    await asyncio.sleep(SOON_S)
    for number in range(3):
        scene.once([late], "cancelled", number)
    scene.same(await scene.group.block("next"), scene.of_all("next"), "the next call")
    # After a pause without any call the timer is set anew.
    call = in_task(scene.group.stay("again"))
    scene.is_error(await scene.soon(call, "a later call"), DeadlineExceeded, "a later call")


@promise(1, 2, 3)
async def methods_are_scheduled_by_their_kind(scene: Scene) -> None:
    """An ``async def`` method waits for a ``def`` method, which waits for none; a concurrent one does not wait."""
    rank = scene.rank()
    member, began = scene.group[rank], scene.now
    before = in_task(member.stay("before", 1.5))
    await asyncio.sleep(0.1)
    blocks, behind, beside = member.block("blocks", 1.0), member.stay("behind", 0.1), member.stay_beside("beside", 0.1)
    scene.same(await scene.soon(beside, "a concurrent call"), [(rank, "beside")], "a concurrent call")
    scene.check(scene.now - began < 0.5, f"a concurrent call took {scene.now - began:.2f} s")
    await asyncio.sleep(0.2)
    scene.same(scene.seen("begins", "behind"), [], "calls that began beside a def method")
    scene.same(await blocks, [(rank, "blocks")], "a def method")
    scene.check(1.0 <= scene.now - began < 1.3, f"a def method took {scene.now - began:.2f} s")
    scene.same(await behind, [(rank, "behind")], "a call behind it")
    scene.check(scene.now - began < 1.45, f"a call behind it took {scene.now - began:.2f} s")
    scene.same(await before, [(rank, "before")], "a coroutine that was there before")


@promise(2, 3)
async def a_def_method_that_is_cancelled_runs_to_its_end(scene: Scene) -> None:
    rank = scene.rank()
    call = scene.group[rank].block("w", 1.0)
    await asyncio.sleep(0.3)
    call.cancel()
    scene.is_error(await scene.soon(call, "the call"), ClosedError, "the call", "by handle.cancel()")
    scene.same(await scene.group[rank].block("next"), [(rank, "next")], "the next call")
    scene.same([each[1:3] for each in scene.seen("ends")], [("ends", "w"), ("ends", "next")], "ends")


async def _ask_for_long(self: Strict, group: str, rank: int, methods: list[str]) -> None:
    members = await self.find(group)
    calls = [in_task(getattr(members[rank], method)(f"of a caller: {method}")) for method in methods]
    reading = in_task(read_slowly(members[rank].items("of a caller: items", 1000, 0.05)))
    await asyncio.wait([*calls, reading])


@promise(2, 3)
async def calls_of_a_dead_caller_are_cancelled(scene: Scene) -> None:
    """Those that run are, those that wait never begin, and its streams are closed; on its own node and elsewhere."""
    callers = await scene.launch("callers", [scene.rng.randrange(scene.nodes)])
    rank = scene.rank()
    asking = in_task(callers.act(_ask_for_long, scene.name, rank, ["stay", "stay_beside"]))
    await scene.until(3.0, lambda: len(scene.seen("item", "of a caller: items")) > 3, "the stream has begun")
    scene.check(scene.sim.kill("callers", 0), "there is no caller")
    await asyncio.sleep(SOON_S)
    scene.is_error(await scene.soon(asking, "the caller's call"), WorkerDied, "the caller's call")
    for method in ("stay", "stay_beside"):
        scene.once([rank], "cancelled", f"of a caller: {method}")
    scene.once([rank], "closed", "of a caller: items")
    scene.same(await scene.group.block("next"), scene.of_all("next"), "the next call")
    await callers.close()


@promise(3, 4)
async def a_death_ends_its_calls_and_no_others(scene: Scene) -> None:
    victim = scene.rank()
    other = scene.rng.choice(scene.others(victim))
    callers = await scene.launch("callers", [scene.rng.randrange(scene.nodes)])
    peer = in_task(callers.act(_ask, scene.name, victim))
    whole, all_of_them = in_task(scene.group.stay("whole")), in_task(scene.group.stay("all", 2.0).outcomes())
    queued = [in_task(scene.group[victim].block("blocks", 5.0)), in_task(scene.group[victim].block("queued"))]
    beside = in_task(scene.group[other].stay("beside", 3.0))
    await scene.until(3.0, lambda: bool(scene.seen("begins", "blocks")), "the call has begun")
    await asyncio.sleep(0.1)
    scene.kill(victim)
    began = scene.now
    for call in (whole, *queued, peer):
        died = await scene.soon(call, "a call of a dead rank", 1.0)
        scene.is_error(died, WorkerDied, "a call of a dead rank")
        scene.same((died.group, died.rank, died.returns), (scene.name, victim, False), "the death")
    outcomes = await scene.soon(all_of_them, "the outcomes", 3.0)
    for each_ in outcomes:
        scene.same(type(each_.error), WorkerDied if each_.rank == victim else type(None), f"of rank {each_.rank}")
    scene.same(await beside, [(other, "beside")], "a call of another rank")
    scene.once(scene.others(victim), "cancelled", "whole")
    scene.same(scene.deaths, [(victim, False)], "deaths that were told")
    began = scene.now
    scene.is_error(await scene.soon(scene.group.block("late"), "a later call", 1.0), WorkerDied, "a later call")
    scene.is_error(await scene.soon(callers.act(_ask, scene.name, victim), "one more", 1.0), WorkerDied, "one more")
    scene.check(scene.now - began < 1.0, "later calls took long")
    await callers.close()


async def _ask(self: Strict, group: str, rank: int, method: str = "stay", *arguments: Any) -> Any:
    return await getattr((await self.find(group))[rank], method)("of a peer", *arguments)


@promise(2, 3)
async def the_close_of_a_group_ends_its_calls(scene: Scene) -> None:
    """Each call ends, cleanups run, no call is taken any more, and the name is free for another group."""
    callers = await scene.launch("callers", [scene.rng.randrange(scene.nodes)])
    blocks = scene.rng.random() < 0.5
    rank = scene.rank()
    calls = [in_task(scene.group.stay("stays")), in_task(scene.group[rank].stay_beside("beside"))]
    calls.append(in_task(callers.act(_ask, scene.name, rank)))
    reading = in_task(gather(scene.group.items("items", 10_000, 0.05), []))
    calls += [in_task(scene.group.any(in_flight=1).stay("any")) for _ in range(scene.size + 2)]
    await asyncio.sleep(0.4)
    if blocks:
        calls += [in_task(scene.group[rank].block("blocks", 0.5)), in_task(scene.group[rank].block("queued"))]
        await asyncio.sleep(0.1)
    closing = in_task(scene.group.close())
    await turns(2)
    scene.is_error(await outcome(_call(scene.group, "late")), ClosedError, "a call of a closed group", "is closed")
    scene.same(await scene.soon(closing, "the close", 8.0), None, "the close")
    for number, call in enumerate(calls):
        found = await scene.soon(call, "a call")
        if blocks and number == len(calls) - 2:  # a def method that runs has time to end
            found = found if isinstance(found, ClosedError) else ClosedError()
        scene.is_error(found, ClosedError, f"call {number} of a closed group")
    scene.is_error(await scene.soon(reading, "the stream"), ClosedError, "the stream of a closed group")
    scene.once(range(scene.size), "cancelled", "stays")
    scene.once([rank], "cancelled", "beside")
    scene.once(range(scene.size), "closed", "items")
    scene.once(range(scene.size), "cancelled", "any")
    scene.same(scene.ranks_of("on_close"), [*range(scene.size)], "ranks that ran on_close()")
    scene.same([who for who in scene.sim.ranks if who[0] == scene.name], [], "ranks that live")
    scene.same(scene.deaths, [], "deaths that were told")
    again = await scene.launch(scene.name, scene.places)
    scene.same(await again.block("anew"), scene.of_all("anew"), "a group of the same name")
    await callers.close()
    await again.close()


async def _call(group: Any, what: str) -> Any:
    return await group.block(what)


@promise(1, 2)
async def a_name_is_waited_for_and_is_of_one_group(scene: Scene) -> None:
    name = f"{scene.name}late"
    found = [in_task(scene.group[rank].act(_ask, name, 0, "block")) for rank in range(scene.size)]
    await asyncio.sleep(0.5)
    late = await scene.launch(name, [scene.rng.randrange(scene.nodes)])
    for call in found:
        scene.same(await scene.soon(call, "a lookup"), [[(0, "of a peer")]], "a lookup that came before the group")
    twice = await outcome(_launch_twice(scene, name))
    scene.is_error(twice, ValueError, "the second group of a name", "exists already")
    scene.same(await late.block("goes on"), [(0, "goes on")], "the first group of a name")
    await late.close()


async def _launch_twice(scene: Scene, name: str) -> Any:
    return await scene.launch(name, [0])


async def _have_tasks(self: Strict, fails_in: float | None) -> None:
    async def work(seconds: float, fails: bool) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.note("task cancelled")
            raise
        if fails:
            raise LookupError("a task that fails")

    self.background(work(0.1, False))
    cancelled = self.background(work(0.2, True))
    cancelled.cancel()
    self.background(work(LONG_S, False))
    if fails_in is not None:
        self.background(work(fails_in, True))


@promise(2, 3)
async def a_background_task_that_fails_ends_its_worker(scene: Scene) -> None:
    victim = scene.rank()
    for rank in range(scene.size):
        await scene.group[rank].act(_have_tasks, 1.0 if rank == victim else None)
    call = in_task(scene.group[victim].stay("w"))
    await asyncio.sleep(0.5)
    scene.same(scene.deaths, [], "deaths after tasks that return or are cancelled")
    died = await scene.soon(call, "a call of the worker", 2.0)
    scene.is_error(died, WorkerDied, "a call of the worker", "LookupError", "a task that fails")
    await scene.until(1.0, lambda: scene.deaths == [(victim, False)], "the death is told")
    await scene.group.close()
    scene.same(len(scene.seen("on_close", rank=victim)), 0, "on_close() after such a death")
    left = {each[0] for each in scene.seen("task cancelled")}
    scene.same(left >= set(scene.others(victim)), True, "tasks that run at the close are cancelled")


@promise(1, 2)
async def calls_before_a_group_is_there_run_in_order(scene: Scene) -> None:
    name, size = f"{scene.name}early", scene.rng.choice((1, 2, 3))
    places = [scene.rng.randrange(scene.nodes) for _ in range(size)]
    late = Strict.create_group().launch(scene.cluster, NodePlacementStrategy(places), name=name)
    calls = [(number, late.block(number, 0.0, scene.rng.choice((b"", bytes(70_000))))) for number in range(4)]
    given_up, stream = late.stay("given up"), late.items("items", 3)
    pool = [in_task(late.any(in_flight=1).stay(f"any {number}", 0.1)) for number in range(2)]
    given_up.cancel()
    scene.is_error(await scene.soon(given_up, "a call that is given up"), ClosedError, "a call that is given up")
    for number, call in calls:
        found = await scene.soon(call, f"call {number}", 8.0)
        scene.same(found, [(rank, number) for rank in range(size)], f"call {number}")
    for rank in range(size):
        begun = [each[2] for each in scene.seen("begins", rank=rank, group=name) if isinstance(each[2], int)]
        scene.same(begun, [0, 1, 2, 3], f"calls of rank {rank}")
    for number, call in enumerate(pool):
        scene.same((await scene.soon(call, "a call of any rank"))[1], f"any {number}", "a call of any rank")
    found = []
    scene.same(await scene.soon(gather(stream, found), "a stream"), None, "a stream")
    scene.same(sorted(found), [(rank, number) for rank in range(size) for number in range(3)], "its items")
    begun, ended = (scene.ranks_of(kind, "given up", name) for kind in ("begins", "cancelled"))
    scene.same(ended, begun, "ranks where a call that was given up has ended, of those where it began")
    await late.close()
