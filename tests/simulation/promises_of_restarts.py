"""Promises of docs/supervision.md: deaths, restarts, their hooks, order and limits."""

from __future__ import annotations

import asyncio
from typing import Any

from rlinf_async import ClosedError, DeadlineExceeded, PeerLost, WorkerDied, each
from tests.simulation.strict import LONG_S, SOON_S, Hooked, Scene, Strict, gather, in_task, promise, turns


async def _incarnations(scene: Scene) -> list[int]:
    return list(await scene.group.incarnation())


def _changed(before: list[int], after: list[int]) -> list[int]:
    return [rank for rank, each in enumerate(before) if after[rank] != each]


# -- one death --------------------------------------------------------------------------------------------------------


@promise(2, 3, 4, restart="rank", max_restarts=100)
async def a_rank_that_dies_comes_back_and_calls_wait_for_it(scene: Scene) -> None:
    """New calls of any rank wait, and run in order; those that were open fail, or are made again if they may."""
    victim = scene.rank()
    other = scene.rng.choice(scene.others(victim))
    before = await _incarnations(scene)
    plain, again = in_task(scene.group.stay("plain")), in_task(scene.group.stay_again("again", 1.5))
    beside = in_task(scene.group[other].stay("beside", 3.0))
    await asyncio.sleep(0.5)
    scene.kill(victim)
    died = await scene.soon(plain, "an open call", 1.0)
    scene.is_error(died, WorkerDied, "an open call")
    scene.same((died.rank, died.returns), (victim, True), "the death")
    scene.same(scene.group.away, [victim], "ranks that are away")
    scene.same(scene.group[other].away, [], "ranks that are away of another view")
    calls = [("v", scene.group[victim]), ("all", scene.group), ("o", scene.group[other]), ("w", scene.group)]
    handles = [(what, view.block(what)) for what, view in calls]
    await asyncio.sleep(0.02)
    scene.same(scene.seen("begins", "o"), [], "calls of other ranks while one is away")
    for what, handle in handles:
        ranks = {"v": [victim], "o": [other]}.get(what, [*range(scene.size)])
        scene.same(await scene.soon(handle, what, 3.0), [(rank, what) for rank in ranks], f"call {what}")
    order = [each[2] for each in scene.seen("begins", rank=other) if each[2] in ("all", "o", "w")]
    scene.same(order, ["all", "o", "w"], "order of the calls that waited")
    found = await scene.soon(again, "an idempotent call", 3.0)
    scene.same(found, scene.of_all("again"), "an idempotent call")
    begun = [len(scene.seen("begins", "again", rank)) for rank in range(scene.size)]
    scene.same(begun, [1 + (rank == victim) for rank in range(scene.size)], "times that it began, by rank")
    scene.same(await beside, [(other, "beside")], "an open call of another rank")
    scene.same(_changed(before, await _incarnations(scene)), [victim], "ranks that are new")
    scene.once(scene.others(victim), "cancelled", "plain")
    scene.same((scene.deaths, scene.group.away), ([(victim, True)], []), "deaths that were told, and who is away")
    scene.same([(each.ranks, each.attempt) for each in scene.back], [((victim,), 1)], "returns that were told")
    scene.same(scene.back[0].counts, tuple(int(rank == victim) for rank in range(scene.size)), "counts")


@promise(3, 4, restart="rank", order="rank", max_restarts=100)
async def with_an_order_of_their_own_the_others_go_on(scene: Scene) -> None:
    victim = scene.rank()
    other = scene.rng.choice(scene.others(victim))
    await scene.group.block("warm")
    scene.kill(victim)
    await scene.until(1.0, lambda: scene.group.away == [victim], "the death is told")
    if scene.rng.random() < 0.5:  # its pause doubles, and others come back at their own pace
        await scene.until(2.0, lambda: not scene.group.away, "it is back")
        scene.kill(victim)
        await scene.until(1.0, lambda: scene.group.away == [victim], "the next death is told")
    kills_other = scene.size > 2 and scene.rng.random() < 0.3
    handles = [(what, scene.group.block(what)) for what in ("one", "two")]
    alone = scene.group[other].block("alone")
    mine = [scene.group[victim].block(what) for what in ("mine", "mine too")]
    await asyncio.sleep(0.04)
    if scene.group.away == [victim]:
        scene.once(scene.others(victim), "begins", "one")
        scene.once(scene.others(victim), "begins", "two")
        scene.once([other], "begins", "alone")
        scene.same(scene.seen("begins", rank=victim)[1:], [], "calls of a rank that is away")
    if kills_other:
        third = next(rank for rank in range(scene.size) if rank not in (victim, other))
        scene.kill(third)
    scene.same(await scene.soon(alone, "a call of another rank", 1.0), [(other, "alone")], "a call of another rank")
    for what, handle in handles:
        found = await scene.soon(handle, what, 3.0)
        scene.same(found, scene.of_all(what), f"call {what}")
    for handle in mine:
        scene.check(isinstance(await scene.soon(handle, "a call of the victim", 3.0), list), "a call of the victim")
    order = [each[2] for each in scene.seen("begins", rank=victim) if each[2] != "warm"]
    scene.same(order, ["one", "two", "mine", "mine too"], "order of the calls that waited")
    await scene.until(3.0, lambda: not scene.group.away, "all are back")
    back = sorted(rank for each in scene.back for rank in each.ranks)
    scene.same(back, sorted(rank for rank, _ in scene.deaths), "ranks that were told to be back")
    scene.same(len(scene.back), len(scene.deaths), "returns that were told, one each")


@promise(2, 3, restart="group", max_restarts=100)
async def a_group_comes_back_as_a_whole(scene: Scene) -> None:
    victim = scene.rank()
    before = await _incarnations(scene)
    calls = [in_task(scene.group[rank].stay("w")) for rank in range(scene.size)]
    again = in_task(scene.group.stay_again("again", 1.0))
    await asyncio.sleep(0.3)
    scene.kill(victim)
    for call in calls:
        scene.is_error(await scene.soon(call, "an open call"), WorkerDied, "an open call")
    waits = scene.group.block("next")
    scene.same(await scene.soon(waits, "the next call", 3.0), scene.of_all("next"), "it")
    scene.same(_changed(before, await _incarnations(scene)), [*range(scene.size)], "ranks that are new")
    found = await scene.soon(again, "an idempotent call", 3.0)
    scene.same(found, scene.of_all("again"), "an idempotent call")
    scene.same([(each.ranks, each.counts) for each in scene.back], [((*range(scene.size),), (1,) * scene.size)], "told")
    scene.check((victim, True) in scene.deaths, f"deaths that were told: {scene.deaths}")
    scene.same(len(scene.deaths), len(set(scene.deaths)), "deaths that were told twice")


# -- limits -----------------------------------------------------------------------------------------------------------


@promise(2, 3, restart="rank", max_restarts=2, restart_window=600.0)
async def a_rank_that_keeps_dying_is_given_up(scene: Scene) -> None:
    """Each restart takes twice as long as the one before, and after the last one what waits for the rank fails."""
    victim = scene.rank()
    other = scene.others(victim)[0]
    listening = in_task(scene.group[other].act(_hear, scene.name, victim))
    for pause in (0.1, 0.2):
        scene.kill(victim)
        await scene.until(1.0, lambda: scene.group.away == [victim], "the death is told")
        took = await scene.until(2.0, lambda: not scene.group.away, "it is back")
        scene.check(pause * 0.9 <= took + 0.01 < pause + 0.09, f"it was back after {took:.3f} s, not {pause:g} s")
    scene.same(scene.deaths, [(victim, True)] * 2, "deaths that were told")
    calls = [in_task(scene.group[victim].stay_again("again"))]
    await asyncio.sleep(0.1)
    scene.kill(victim)
    await scene.until(2.0, lambda: (victim, False) in scene.deaths, "the end of the restarts is told")
    scene.same(scene.deaths[2:], [(victim, True), (victim, False)], "the last death, as it was told")
    calls += [in_task(scene.group[victim].block("late")), in_task(scene.group.block("late")), listening]
    for call in calls:
        died = await scene.soon(call, "what waits for it", 3.0)
        scene.check(isinstance(died, PeerLost), f"what waits for it: {died!r}")
        scene.same(died.returns, False, f"returns of {died!r}")
    scene.same(scene.group.away, [], "ranks that are away")
    scene.same(await scene.soon(scene.group[other].block("on"), "another rank", 1.0), [(other, "on")], "another rank")
    scene.same(len(scene.seen("born", rank=victim)), 3, "incarnations")
    restart = await scene.soon(scene.group[victim].stay("late"), "one more call", 1.0)
    scene.is_error(restart, WorkerDied, "one more call", "died more than 2 times within 600 s")


async def _hear(self: Strict, group: str, rank: int) -> Any:
    return await self.recv(group, rank)


@promise(2, restart="rank", max_restarts=1, restart_window=4.0)
async def deaths_out_of_the_window_count_no_more(scene: Scene) -> None:
    victim = scene.rank()
    for number in range(3):
        await scene.die(victim)
        scene.same(await scene.soon(scene.group.block(number), "a call", 2.0), [(0, number), (1, number)], "a call")
        await asyncio.sleep(4.3)
    for _ in range(2):
        scene.kill(victim)
        await asyncio.sleep(0.9)
    scene.same(scene.deaths, [(victim, True)] * 5 + [(victim, False)], "deaths that were told")


@promise(2, 3, restart="rank", max_restarts=1)
async def restarts_by_hand_are_free(scene: Scene) -> None:
    victim = scene.rank()
    for number in range(1, 3):
        before = await _incarnations(scene)
        restarting = in_task(scene.group.restart(victim))
        await turns(5)
        calls = [in_task(view.block(number)) for view in (scene.group, scene.group[victim])]
        scene.same(await scene.soon(restarting, "a restart by hand", 3.0), None, "a restart by hand")
        for call in calls:
            scene.check(isinstance(await scene.soon(call, "a call"), list), f"a call during a restart: {call.result()}")
        scene.same(_changed(before, await _incarnations(scene)), [victim], "ranks that are new")
        scene.same(
            (scene.back[-1].ranks, scene.back[-1].counts[victim]), ((victim,), number), "who was told to be back"
        )
    await scene.die(victim)
    scene.same(
        await scene.soon(scene.group[victim].block("w"), "a call", 2.0), [(victim, "w")], "a call behind a death"
    )
    await scene.die(victim)
    scene.is_error(await scene.soon(scene.group[victim].block("x"), "it", 2.0), WorkerDied, "a call behind the second")
    others = scene.others(victim)
    if scene.rng.random() < 0.5:  # the budget of other ranks is their own
        await scene.die(others[0])
        found = await scene.soon(scene.group[others[0]].block("y"), "a call", 2.0)
        scene.same(found, [(others[0], "y")], "a call of another rank behind its first death")


@promise(1, 2, restart="rank", max_restarts=3, arguments=((2, 3),))
async def a_constructor_that_fails_again_costs_restarts(scene: Scene) -> None:
    await scene.die(0)
    call = in_task(scene.group.block("w"))
    found = await scene.soon(call, "a call that waits", 6.0)
    scene.same(found, scene.of_all("w"), "a call that waits")
    scene.same(len(scene.seen("born", rank=0)), 4, "incarnations")
    scene.same(scene.back[-1].counts[0], 3, "restarts")
    await scene.die(0)
    died = await scene.soon(scene.group[0].block("x"), "a call", 4.0)
    scene.is_error(died, WorkerDied, "a call behind one death more", "died more than 3 times")


@promise(1, 2, restart="rank", max_restarts=1, arguments=((2, 3, 4),))
async def a_restart_by_hand_that_fails_says_so(scene: Scene) -> None:
    error = await scene.soon(scene.group.restart(0), "a restart by hand", 6.0)
    scene.is_error(error, WorkerDied, "a restart by hand")
    scene.same(scene.group.away, [], "ranks that are away")
    scene.is_error(await scene.soon(scene.group[0].block("w"), "a call", 1.0), WorkerDied, "a call")


@promise(2, 3, restart="rank", max_restarts=100, call_timeout=0.5)
async def a_call_that_waits_for_a_rank_has_its_deadline(scene: Scene) -> None:
    victim = scene.rank()
    for _ in range(3):
        await scene.die(victim)
        await scene.until(2.0, lambda: not scene.group.away, "it is back")
    await scene.die(victim)  # its pause is 0.8 s now
    began = scene.now
    call = in_task(scene.group.block("w"))
    error = await scene.soon(call, "a call that waits")
    scene.is_error(error, DeadlineExceeded, "a call that waits", "within 0.5 s", f"rank {victim}")
    scene.check(0.48 <= scene.now - began < 0.7, f"its deadline took {scene.now - began:.2f} s")
    await scene.until(2.0, lambda: not scene.group.away, "it is back")
    scene.same(await scene.soon(scene.group.block("x"), "the next call"), scene.of_all("x"), "the next call")


@promise(3, 4, restart="rank", order="rank", max_restarts=100)
async def each_rank_comes_back_after_its_own_delay(scene: Scene) -> None:
    """Its own calls go on then, also those that others wait for; one that is given up runs on nowhere."""
    slow, quick = scene.two_ranks()
    for _ in range(3):
        await scene.die(slow)
        await scene.until(2.0, lambda: not scene.group.away, "it is back")
    await scene.die(slow)  # its pause is 0.8 s now
    whole, given_up = in_task(scene.group.block("whole")), scene.group.stay("given up")
    naps = [0.1 if rank == quick else LONG_S for rank in range(scene.size)]
    fails = in_task(scene.group.stay("fails", each(naps), [quick]))
    await asyncio.sleep(0.2)
    given_up.cancel()
    scene.is_error(await scene.soon(fails, "a call that fails elsewhere", 1.0), LookupError, "a call that fails")
    await asyncio.sleep(0.05)
    await scene.die(quick)
    mine = in_task(scene.group[quick].block("mine"))
    scene.same(await scene.soon(mine, "a call of the other one", 0.5), [(quick, "mine")], "a call of the other one")
    scene.same(scene.group.away, [slow], "ranks that are away")
    scene.same((scene.back[-1].ranks, whole.done()), ((quick,), False), "who is back, and a call of all")
    scene.same(await scene.soon(whole, "a call of all"), scene.of_all("whole"), "a call of all")
    await asyncio.sleep(SOON_S)
    for what in ("given up", "fails"):
        begun = scene.ranks_of("begins", what)
        ended = sorted([*scene.ranks_of("cancelled", what), *([quick] if what == "fails" else [])])
        scene.same(ended, begun, f"ranks where {what!r} has ended, of those where it began")


# -- hooks ------------------------------------------------------------------------------------------------------------


@promise(2, 3, 4, cls=Hooked, arguments=(1.0,), restart="rank", max_restarts=100)
async def hooks_run_on_every_rank_before_the_calls_that_wait(scene: Scene) -> None:
    """A second death ends them, and they run again with both ranks and the next number; the driver is told once."""
    one, other = scene.two_ranks()
    order = [one, other] if scene.rng.random() < 0.7 else [one, one]
    await scene.die(one)
    call = in_task(scene.group.block("w"))
    await scene.until(2.0, lambda: len(scene.seen("hook")) == scene.size, "hooks run on every rank")
    scene.same({each[2:] for each in scene.seen("hook")}, {(1, (one,), _counts(scene, [one]))}, "the first attempt")
    await asyncio.sleep(scene.rng.choice((0.1, 0.5)))
    scene.same((scene.back, scene.seen("begins")), ([], []), "returns and calls while hooks run")
    if twice := scene.rng.random() < 0.7:
        scene.kill(order[1])
    found = await scene.soon(call, "a call that waits", 6.0)
    scene.same(found, scene.of_all("w"), "a call that waits")
    attempt = 2 if twice else 1
    ranks = tuple(sorted(set(order))) if twice else (one,)
    counts = _counts(scene, order if twice else [one])
    told = [(each.attempt, each.ranks, each.counts) for each in scene.back]
    scene.same(told, [(attempt, ranks, counts)], "returns that the driver was told")
    last = [each for each in scene.seen("hook") if each[2] == attempt]
    scene.same(sorted(each[0] for each in last), [*range(scene.size)], "ranks of the last attempt")
    scene.same({each[2:] for each in last}, {(attempt, ranks, counts)}, "the last attempt")
    for rank in range(scene.size):
        kinds = [each[1] for each in scene.seen_of(rank) if each[1] in ("hook", "hooked", "begins")]
        scene.same(kinds[-3:], ["hook", "hooked", "begins"], f"what rank {rank} did")
    scene.same({each[2] for each in scene.seen("hooked")}, {attempt}, "attempts that have ended")


def _counts(scene: Scene, deaths: list[int]) -> tuple[int, ...]:
    return tuple(deaths.count(rank) for rank in range(scene.size))


@promise(2, 3, cls=Hooked, arguments=(0.5, (1,)), restart="rank", max_restarts=100)
async def a_hook_that_raises_holds_nothing_up(scene: Scene) -> None:
    victim = scene.rank()
    await scene.die(victim)
    found = await scene.soon(scene.group.block("w"), "a call that waits", 3.0)
    scene.same(found, scene.of_all("w"), "a call that waits")
    scene.same([each.ranks for each in scene.back], [(victim,)], "returns that were told")
    scene.once(scene.others(1), "hooked", 1)


@promise(2, 3, cls=Hooked, arguments=(60.0,), restart="rank", max_restarts=100, call_timeout=1.5)
async def a_hook_that_never_ends_has_the_deadline_of_a_call(scene: Scene) -> None:
    await scene.die(scene.rank())
    await scene.until(1.0, lambda: bool(scene.seen("hook")), "hooks run")
    await asyncio.sleep(2.0)
    found = await scene.soon(scene.group.block("w"), "a call behind the hooks", 2.0)
    scene.same(found, scene.of_all("w"), "a call behind the hooks")
    scene.same(scene.group.away, [], "ranks that are away")


@promise(3, cls=Hooked, arguments=(1.0,), restart="rank", order="rank", max_restarts=100)
async def with_an_order_of_their_own_hooks_meet_all_ranks(scene: Scene) -> None:
    one, other = scene.two_ranks()
    scene.kill(one)
    await asyncio.sleep(0.02)
    if both := scene.rng.random() < 0.5:
        scene.kill(other)
    third = scene.others(one, other)[0]
    ranks = tuple(sorted((one, other))) if both else (one,)
    await scene.until(2.0, lambda: len(scene.seen("hook")) == 3, "hooks run on every rank")
    calls = [in_task(scene.group[rank].block("w")) for rank in (one, third)]
    await asyncio.sleep(0.5)
    scene.same(scene.seen("begins"), [], "calls while hooks run")
    for call in calls:
        scene.check(isinstance(await scene.soon(call, "a call behind the hooks"), list), "a call behind the hooks")
    scene.same({each[3] for each in scene.seen("hook")}, {ranks}, "ranks that hooks were told of")
    scene.same([each.ranks for each in scene.back], [ranks], "returns that were told")


@promise(3, cls=Hooked, arguments=(1.0,), restart="rank", order="rank", max_restarts=100)
async def between_attempts_of_hooks_the_others_go_on(scene: Scene) -> None:
    one, other = scene.two_ranks()
    third = scene.others(one, other)[0]
    await scene.die(one)
    await scene.until(2.0, lambda: len(scene.seen("hook")) == 3, "hooks run on every rank")
    await scene.die(other)
    await scene.until(0.05, lambda: other in scene.group.away, "the second death is told")
    call = in_task(scene.group[third].block("w"))
    await scene.until(3.0, lambda: len(scene.seen("hook")) == 6, "hooks run once more")
    kinds = [each[1] for each in scene.seen_of(third) if each[1] in ("hook", "begins")]
    scene.same(kinds, ["hook", "begins", "hook"], "what the third rank did")
    scene.same(await scene.soon(call, "a call of the third rank"), [(third, "w")], "a call of the third rank")
    await scene.until(3.0, lambda: bool(scene.back), "the ranks are told to be back")
    scene.same([each.ranks for each in scene.back], [tuple(sorted((one, other)))], "ranks that are back")


@promise(2, 3, restart="rank", max_restarts=100)
async def a_call_that_is_given_up_while_its_rank_is_away_does_not_run_on(scene: Scene) -> None:
    victim = scene.rank()
    how = scene.rng.choice(("again", "waits", "stream"))
    call = scene.group.stay_again("w") if how == "again" else None
    await asyncio.sleep(0.3)
    await scene.die(victim)
    if how == "stream":
        reading = in_task(gather(scene.group.items("w", 1000, 1.0), []))
        await asyncio.sleep(0.01)
        reading.cancel()
    else:
        call = scene.group.stay("w") if call is None else call
        await asyncio.sleep(scene.rng.choice((0.0, 0.02)))
        call.cancel()
        scene.is_error(await scene.soon(call, "the call"), ClosedError, "the call", "by handle.cancel()")
    await scene.group.block("next")
    await asyncio.sleep(SOON_S)
    # It may leave before its cancel does, and then begins for a moment.
    ended = scene.ranks_of("closed" if how == "stream" else "cancelled", "w")
    begun = scene.ranks_of("begins", "w")
    if how == "again":
        begun.remove(victim)
    scene.same(ended, begun, "ranks where it has ended, of those where it began")


@promise(2, 3, restart="rank", max_restarts=100)
async def the_close_of_a_group_ends_what_waits_for_a_rank(scene: Scene) -> None:
    victim = scene.rank()
    again = in_task(scene.group.stay_again("again"))
    await asyncio.sleep(0.3)
    await scene.die(victim)
    calls = [again, in_task(scene.group.block("w")), in_task(scene.group[victim].stay("x"))]
    items: list[Any] = []
    calls += [in_task(gather(scene.group.items("s", 10), items)), in_task(scene.group[victim].any().block("a"))]
    await asyncio.sleep(scene.rng.choice((0.0, 0.05, 0.1)))
    await scene.group.close()
    for call in calls:
        error = await scene.soon(call, "what waited", 1.0)
        is_whole = isinstance(error, tuple | list) or (error is None and len(items) == 10 * scene.size)
        scene.check(is_whole or isinstance(error, ClosedError | WorkerDied), f"what waited: {error!r}")
    await asyncio.sleep(SOON_S)
    scene.same([who for who in scene.sim.ranks if who[0] == scene.name], [], "ranks that live")
