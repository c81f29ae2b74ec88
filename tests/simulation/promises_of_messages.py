"""Promises of messages between workers, each shown with at most one death, cut, cancel or timeout."""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from rlinf_async import Channel, settings
from rlinf_async._worker import context
from rlinf_async._worker.device_lock import DeviceLock
from tests.simulation.strict import Scene, Strict, in_task, outcome, promise, turns

SIZES = (10, 10, 70_000, 300_000)
"""Bytes: in a frame, in shared memory, more than one piece between nodes."""


def _message(what: Any, size: int) -> Any:
    return what, torch.zeros(size, dtype=torch.uint8)


async def _send(
    self: Strict, group: str, rank: int, plan: list[tuple[Any, int]], gives_up: dict[Any, int]
) -> list[Any]:
    """Send messages at once; those of ``gives_up`` are given up after so many turns. Return how each has ended."""
    works = {what: self.send(_message(what, size), group, rank, async_op=True) for what, size in plan}
    tasks = {what: in_task(work) for what, work in works.items()}
    for what, count in gives_up.items():
        await turns(count)
        tasks[what].cancel()
    await asyncio.wait(tasks.values())
    return ["given up" if task.cancelled() else _word(task.result()) for task in tasks.values()]


def _word(found: Any) -> Any:
    return found if found is None else type(found).__name__


async def _take(self: Strict, group: str, rank: int, count: int, timeout: float | None = 20.0) -> list[Any]:
    """Receive so many messages, one after the other; an error ends that."""
    found: list[Any] = []
    for _ in range(count):
        message = await outcome(self.recv(group, rank, timeout=timeout))
        if isinstance(message, Exception):
            return [*found, _word(message)]
        found.append(message[0])
    return found


def _plan(scene: Scene, count: int) -> list[tuple[int, int]]:
    return [(number, scene.rng.choice(SIZES)) for number in range(count)]


@promise(2, 3)
async def messages_come_in_order_and_none_that_was_withdrawn(scene: Scene) -> None:
    """More than the window takes wait for their receiver; of those one that is given up never comes."""
    one, other = scene.two_ranks()
    plan = [(number, scene.rng.choice((100_000, 300_000))) for number in range(12)]
    if scene.rng.random() < 0.5:
        plan = _plan(scene, 12)
    gives_up = {number: scene.rng.choice((1, 2, 50)) for number in scene.rng.sample(range(1, 12), 3)}
    sending = in_task(scene.group[one].act(_send, scene.name, other, plan, gives_up))
    is_late = scene.rng.random() < 0.5
    await asyncio.sleep(0.5 if is_late else 0.0)
    first = (await scene.group[other].act(_take, scene.name, one, 5))[0]
    await asyncio.sleep(0.2)
    rest = in_task(scene.group[other].act(_take, scene.name, one, 7, 2.0))
    (ends,) = await scene.soon(sending, "the sends", 4.0)
    numbers = [number for number in [*first, *(await scene.soon(rest, "the receives", 4.0))[0]] if type(number) is int]
    scene.same(numbers, sorted(set(numbers)), "order of the messages")
    for number, end in enumerate(ends):
        if end is None:
            scene.check(number in numbers, f"message {number} was sent, and has not come: {numbers}")
            continue
        scene.check(number in gives_up, f"message {number}: {end}")
        # One that waits for its receiver has not left; any other one may be given up as it leaves.
        if is_late and plan[number][1] > settings.MESSAGE_WINDOW_BYTES():
            scene.check(number not in numbers, f"message {number} was withdrawn, and has come: {numbers}")


async def _take_wavering(self: Strict, group: str, rank: int, posted: int, given_up: list[int]) -> list[Any]:
    """Receive at once, and give some of the receives up; return what the others get."""
    tasks = [in_task(self.recv(group, rank, timeout=5.0)) for _ in range(posted)]
    await asyncio.sleep(0.3)
    self.note("posted")
    for index in given_up:
        tasks[index].cancel()
    await asyncio.wait(tasks)
    return [task.result()[0] for task in tasks if not task.cancelled()]


@promise(2, 3)
async def receives_are_served_in_order_and_those_given_up_take_nothing(scene: Scene) -> None:
    one, other = scene.two_ranks()
    given_up = scene.rng.sample(range(6), 2)
    early = scene.rng.random() < 0.5
    taking = in_task(scene.group[other].act(_take_wavering, scene.name, one, 6, given_up))
    await asyncio.sleep(0.6 if early else 0.3)
    plan = _plan(scene, 4 if early else 6)
    sending = in_task(scene.group[one].act(_send, scene.name, other, plan, {}))
    (found,) = await scene.soon(taking, "the receives", 6.0)
    rest = []
    if len(found) < len(plan):
        (rest,) = await scene.group[other].act(_take, scene.name, one, len(plan) - len(found), 2.0)
    scene.same(sorted([*found, *rest]), [*range(len(plan))], "messages")
    scene.same(await scene.soon(sending, "the sends"), [[None] * len(plan)], "the sends")
    if early:
        scene.same(found, [0, 1, 2, 3], "messages of the receives that stayed")


async def _send_noting(self: Strict, group: str, rank: int, count: int, size: int) -> None:
    works = [self.send(_message(number, size), group, rank, async_op=True) for number in range(count)]
    for number, work in enumerate(works):
        await work
        self.note("sent", number)


@promise(2, 3, env={"RLINF_MESSAGE_WINDOW_BYTES": "65536"})
async def what_was_received_makes_room_for_what_waits(scene: Scene) -> None:
    """A send that fits the window waits until the receiver has taken as much, and for no receive of its own."""
    one, other = scene.two_ranks()
    size, room = scene.rng.choice(((10_000, 6), (15_000, 4), (30_000, 2)))
    sending = in_task(scene.group[one].act(_send_noting, scene.name, other, 14, size))
    taken = 0
    for count in (0, 1, scene.rng.choice((2, 3)), 2):
        found = (await scene.group[other].act(_take, scene.name, one, count))[0]
        scene.same(found, [*range(taken, taken + count)], "what was received")
        taken += count
        await asyncio.sleep(0.3)
        sent = len(scene.seen("sent"))
        # The receiver tells of room at once while something waits for it.
        scene.same(sent, min(14, taken + room), f"messages of {size} bytes that have left, {taken} received")
    scene.same(await scene.group[other].act(_take, scene.name, one, 14 - taken), [[*range(taken, 14)]], "the rest")
    await scene.soon(sending, "the sends")


async def _take_and_waver(self: Strict, group: str, rank: int, given_up: dict[int, int]) -> list[Any]:
    """Have eight receives wait, and give some of them up, one after the other, as the messages come."""
    tasks = [in_task(self.recv(group, rank, timeout=3.0)) for _ in range(8)]
    await asyncio.sleep(0)
    self.note("posted")
    for index, count in given_up.items():
        await (turns(count) if count < 20 else asyncio.sleep(count / 10_000))
        tasks[index].cancel()
    await asyncio.wait(tasks)
    found = [task.result() for task in tasks if not task.cancelled()]
    return [message[0] for message in found if isinstance(message, tuple)]  # else one was left over


@promise(2, 3)
async def a_message_on_its_way_goes_to_the_next_receive(scene: Scene) -> None:
    """Whether its receive is given up before the content has come or just then, none is lost and none comes twice."""
    one, other = scene.two_ranks()
    plan = [(number, scene.rng.choice((70_000, 300_000, 1_000_000))) for number in range(5)]
    given_up = {index: scene.rng.choice((0, 1, 3, 8, 20, 40, 80)) for index in scene.rng.sample(range(7), 3)}
    sending = in_task(scene.group[one].act(_send, scene.name, other, plan, {}))
    await asyncio.sleep(scene.rng.choice((0.0, 0.001, 0.2)))
    (found,) = await scene.soon(scene.group[other].act(_take_and_waver, scene.name, one, given_up), "receives", 7.0)
    scene.same(sorted(found), [0, 1, 2, 3, 4], "messages of the receives that stayed")
    scene.same(await scene.soon(sending, "the sends"), [[None] * 5], "the sends")


@promise(2, 3)
async def a_receive_that_was_late_leaves_its_message(scene: Scene) -> None:
    one, other = scene.two_ranks()
    began = scene.now
    (found,) = await scene.group[other].act(_take, scene.name, one, 1, 0.5)
    scene.same(found, ["DeadlineExceeded"], "a receive that is late")
    scene.check(0.48 <= scene.now - began < 0.9, f"its deadline took {scene.now - began:.2f} s")
    plan = _plan(scene, 3)
    sending = in_task(scene.group[one].act(_send, scene.name, other, plan, {}))
    await asyncio.sleep(scene.rng.choice((0.0, 0.3)))
    (found,) = await scene.group[other].act(_take, scene.name, one, 3, 3.0)
    scene.same(found, [0, 1, 2], "what comes next")
    scene.same(await scene.soon(sending, "the sends"), [[None] * 3], "the sends")


async def _wait_for_both(self: Strict, group: str, rank: int, size: int) -> list[Any]:
    """Receive from a rank, and send it more than its window takes."""
    sends = [in_task(self.send(_message(number, size), group, rank, async_op=True)) for number in range(3)]
    receive = in_task(self.recv(group, rank))
    await asyncio.sleep(0)
    self.note("waits")
    await asyncio.wait([*sends, receive])
    found = [receive.result(), *(send.result() for send in sends)]
    return [(_word(each), getattr(each, "returns", None), getattr(each, "rank", None)) for each in found]


@promise(3)
async def a_death_ends_the_messages_of_its_rank_alone(scene: Scene) -> None:
    """What waits for it fails, later waits fail at once, and what it had sent comes first."""
    victim, other, third = scene.rng.sample(range(3), 3)
    sent = _plan(scene, 3)
    knows = scene.rng.random() < 0.5
    if knows:
        sending = in_task(scene.group[victim].act(_send, scene.name, third, sent, {}))
        (found,) = await scene.group[third].act(_take, scene.name, victim, 1)
        scene.same(found, [0], "the first message")
        await asyncio.sleep(0.5)
        scene.check(sending.done() or any(size > 60_000 for _, size in sent), "small messages wait for their receiver")
    waits = in_task(scene.group[other].act(_wait_for_both, scene.name, victim, 70_000))
    aside = in_task(scene.group[other].act(_take, scene.name, third, 1))
    await scene.until(1.0, lambda: bool(scene.seen("waits")), "it waits")
    await asyncio.sleep(0.2)
    await scene.die(victim)
    (found,) = await scene.soon(waits, "what waits for the dead rank", 1.5)
    for number, each in enumerate(found):
        if number == 0 or each[0] is not None:  # a message may have left by then
            scene.same(each, ("WorkerDied", False, victim), f"wait {number} for the dead rank")
    later = in_task(scene.group[other].act(_wait_for_both, scene.name, victim, 10))
    (found,) = await scene.soon(later, "later waits for it", 1.0)
    scene.same(found, [("WorkerDied", False, victim)] * 4, "later waits for it")
    if knows:
        (rest,) = await scene.group[third].act(_take, scene.name, victim, 3, 5.0)
        arrived = [each for each in rest if isinstance(each, int)]
        small = [number for number, size in sent[1:] if size == 10]
        scene.check(rest[len(arrived) :] == ["WorkerDied"], f"the end of what a dead rank has sent: {rest}")
        scene.same(arrived, sorted(arrived), "order of what a dead rank has sent")
        if all(size == 10 for _, size in sent):
            scene.same(arrived, small, "what a dead rank has sent")
    (ends,) = await scene.soon(
        scene.group[third].act(_send, scene.name, other, [("aside", 70_000)], {}), "another pair"
    )
    scene.same((ends, await scene.soon(aside, "another pair")), ([None], [["aside"]]), "another pair")


@promise(2, 3, restart="rank", max_restarts=100)
async def messages_wait_for_a_rank_to_be_back(scene: Scene) -> None:
    """Receives and sends go on with the next process, in order; the message of the old one is gone with its receive."""
    victim, other = scene.two_ranks()
    if scene.rng.random() < 0.6:  # each has the other one's old endpoint
        both = [(victim, other), (other, victim)]
        for one, two in both:
            sending = in_task(scene.group[one].act(_send, scene.name, two, [("before", 10)], {}))
            scene.same(await scene.group[two].act(_take, scene.name, one, 1), [["before"]], "a message before")
            await sending
    taking = None
    if scene.rng.random() < 0.5:
        taking = in_task(scene.group[other].act(_take, scene.name, victim, 2))
        await asyncio.sleep(0.1)
    await scene.die(victim)
    plan = _plan(scene, 4)
    sending = in_task(scene.group[other].act(_send_later, scene.name, victim, plan, scene.rng.choice((0.0, 0.05, 1.0))))
    if taking is None:
        taking = in_task(scene.group[other].act(_take, scene.name, victim, 2))
    for number in ("one", "two"):
        ends = await scene.soon(
            scene.group[victim].act(_send, scene.name, other, [(number, 70_000)], {}), "a send", 4.0
        )
        scene.same(ends, [[None]], "a send of the next process")
    scene.same(await scene.soon(taking, "the receives", 3.0), [["one", "two"]], "what comes from the next process")
    scene.same(await scene.group[victim].act(_take, scene.name, other, 4, 5.0), [[0, 1, 2, 3]], "what comes to it")
    scene.same(await scene.soon(sending, "the sends", 3.0), [[None] * 4], "the sends")


@promise(2)
async def a_death_is_told_to_whoever_waits_though_another_one_has_gone(scene: Scene) -> None:
    """Groups wait for the same rank: the end of one of them ends no other one's watch."""
    victim, names = scene.rank(), [f"{scene.name}-{number}" for number in range(3)]
    groups = [await scene.launch(name, [scene.rng.randrange(scene.nodes)]) for name in names]
    taking = [in_task(group.act(_take, scene.name, victim, 1, 60.0)) for group in groups]
    await asyncio.sleep(0.2)
    gone = scene.rng.randrange(3)
    if scene.rng.random() < 0.5:
        scene.sim.kill(names[gone], 0)
    else:
        await groups[gone].close()
    await asyncio.sleep(scene.rng.choice((0.1, 0.5)))
    await scene.die(victim)
    for number in {0, 1, 2} - {gone}:
        scene.same(await scene.soon(taking[number], "a receive"), [["WorkerDied"]], "a receive from the dead rank")
        await groups[number].close()
    await groups[gone].close()


@promise(2)
async def a_group_of_the_same_name_is_another_one(scene: Scene) -> None:
    """A rank that had sent to a group, and received from it, does so with the next group of that name."""
    name, ending = f"{scene.name}-next", scene.rng.choice(("closed", "dies"))
    for number in range(2):
        group = await scene.launch(name, [scene.rng.randrange(scene.nodes)])
        there = in_task(group.act(_take, scene.name, 0, 1)) if number == 0 or scene.rng.random() < 0.5 else None
        sends = in_task(scene.group[0].act(_send, name, 0, [(number, scene.rng.choice(SIZES))], {}))
        await asyncio.sleep(0.2)
        there = there or in_task(group.act(_take, scene.name, 0, 1))
        scene.same(await scene.soon(sends, "a send", 4.0), [[None]], f"a send to group {number} of that name")
        scene.same(await scene.soon(there, "a receive", 4.0), [[number]], "what came there")
        if ending == "dies":
            scene.sim.kill(name, 0)
            await asyncio.sleep(0.5)
        await group.close()
        await asyncio.sleep(0.2)


async def _send_later(self: Strict, group: str, rank: int, plan: list[Any], pause: float) -> list[Any]:
    """The call may have begun before the death, or begins once calls go on."""
    await asyncio.sleep(pause)
    return await _send(self, group, rank, plan, {})


@promise(2, restart="rank", max_restarts=0)
async def who_is_not_started_again_is_waited_for_no_more(scene: Scene) -> None:
    """Its restarts are used up: the ones who wait for it to be back hear so."""
    victim, other = scene.two_ranks()
    taking = in_task(scene.group[other].act(_take, scene.name, victim, 1, 60.0))
    sending = in_task(scene.group[other].act(_send, scene.name, victim, [("w", 300_000)] * 1, {}))
    await asyncio.sleep(0.2)
    scene.kill(victim)
    (found,) = await scene.soon(taking, "a receive", 2.0)
    scene.same(found, ["WorkerDied"], "a receive from a rank that is given up")
    (ends,) = await scene.soon(sending, "a send", 2.0)
    scene.check(ends in (["WorkerDied"], [None]), f"a send to a rank that is given up: {ends}")


async def _cast(self: Strict, group: str, ranks: list[int], source: int, what: Any, size: int, timeout: float) -> Any:
    value = _message(what, size) if self._rank == source else None
    self.note("joins", what)
    found = await outcome(self.broadcast(value, [(group, ranks)], src=(group, source), async_op=True, timeout=timeout))
    return found[0] if isinstance(found, tuple) else (_word(found), getattr(found, "rank", None))


@promise(3, 4, spread=True)
async def a_broadcast_comes_to_all_or_tells_of_the_death(scene: Scene) -> None:
    """Of a receiver or the source, before it has joined or while it waits; the next one is whole."""
    ranks = scene.rng.sample(range(scene.size), scene.size)
    source, victim = scene.rng.choice(ranks), scene.rank()
    size = scene.rng.choice((10, 70_000, 300_000))
    joined = scene.rng.random() < 0.5

    def cast(who: list[int], what: str, of: list[int]) -> dict[int, Any]:
        return {rank: in_task(scene.group[rank].act(_cast, scene.name, of, source, what, size, 30.0)) for rank in who}

    for number in range(2):
        for rank, task in cast(ranks, f"whole {number}", ranks).items():
            scene.same(await scene.soon(task, f"rank {rank}", 4.0), [f"whole {number}"], f"a broadcast at rank {rank}")
    late = next(rank for rank in ranks if rank != victim)
    early = [rank for rank in ranks if rank != late and (joined or rank != victim)]
    tasks = cast(early, "broken", ranks)
    await asyncio.sleep(0.3)
    await scene.die(victim)
    await asyncio.sleep(0.2)
    tasks |= cast([late], "broken", ranks)
    for rank, task in tasks.items():
        found = await scene.soon(task, f"rank {rank} in a broken broadcast", 3.0)
        if rank != victim and found != ["broken"]:
            scene.same(found, [("WorkerDied", victim)], f"a broken broadcast at rank {rank}")
    if source == victim:
        source = late
    left = [rank for rank in ranks if rank != victim]
    for rank, task in cast(left, "next", left).items():
        scene.same(await scene.soon(task, f"rank {rank}", 4.0), ["next"], f"the next broadcast at rank {rank}")


@promise(2, 3)
async def a_tensor_comes_where_it_fits(scene: Scene) -> None:
    one, other = scene.two_ranks()
    size, fits = scene.rng.choice(SIZES), scene.rng.random() < 0.5
    giving = in_task(scene.group[one].act(_give_tensor, scene.name, other, size))
    taking = in_task(scene.group[other].act(_take_tensor, scene.name, one, size if fits else size + 1))
    ends = [*(await scene.soon(giving, "the sender", 3.0)), *(await scene.soon(taking, "the receiver", 3.0))]
    scene.same(ends, ["None", "True"] if fits else ["ValueError", "ValueError"], "both ends")
    giving = in_task(scene.group[one].act(_give_tensor, scene.name, other, size))
    scene.same(await scene.soon(scene.group[other].act(_take_tensor, scene.name, one, size), "it", 3.0), ["True"], "it")
    scene.same(await scene.soon(giving, "the sender", 3.0), ["None"], "the next one")


async def _give_tensor(self: Strict, group: str, rank: int, size: int) -> str:
    tensor = torch.full((size,), 7, dtype=torch.uint8)
    found = await outcome(self.send_tensor(tensor, group, rank, async_op=True, timeout=20.0))
    return str(_word(found))


async def _take_tensor(self: Strict, group: str, rank: int, size: int) -> str:
    tensor = torch.zeros(size, dtype=torch.uint8)
    found = await outcome(self.recv_tensor(tensor, group, rank, async_op=True, timeout=20.0))
    return str(bool((tensor == 7).all()) if found is None else _word(found))


async def _lock(self: Strict, device: int) -> None:
    assert context.client is not None
    lock = DeviceLock(context.client, f"{self._group_name}:{self._rank}", [device])
    await lock.acquire(30.0)
    self.note("has")
    lock.release()


@promise(3, spread=True)
async def a_network_that_is_away_for_less_than_a_lease_costs_time_only(scene: Scene) -> None:
    """Whatever is under way when it goes, or begins meanwhile, comes once and in order, soon after it is back."""
    one, other, third = scene.rng.sample(range(3), 3)
    seconds = scene.rng.choice((0.3, 3.0, 5.0))
    channel = Channel.create(f"c{scene.name}", cluster=scene.cluster, node_rank=scene.places[other])
    stream = aiter(scene.group[other].items("s", 40, 0.05))
    items = [await anext(stream)]
    early = in_task(scene.group[one].act(_send, scene.name, other, _plan(scene, 5), {}))
    calls = [(number, scene.group.block(number, 0.0, bytes(scene.rng.choice(SIZES)))) for number in range(4)]
    await turns(scene.rng.randrange(6))
    nodes = [scene.places[rank] for rank in (one, other)]
    if nodes[0] != nodes[1]:
        way = scene.rng.choice(("there", "back", "both", "all"))
        if way == "all":
            scene.sim.cut(nodes[1], seconds)
        if way in ("there", "both"):
            scene.sim.cut_way(*nodes, seconds)
        if way in ("back", "both"):
            scene.sim.cut_way(*nodes[::-1], seconds)
    calls += [(number, scene.group.block(number, 0.0, bytes(scene.rng.choice(SIZES)))) for number in range(4, 8)]
    taking = in_task(scene.group[other].act(_take, scene.name, one, 5, 60.0))
    puts = [in_task(channel.put(number)) for number in range(5)]
    asking = in_task(scene.group[third].act(_ask, scene.name, other))
    locks = [in_task(scene.group[rank].act(_lock, 9)) for rank in range(3)]
    given_up = scene.group[other].stay("given up")
    await asyncio.sleep(seconds / 2)
    given_up.cancel()
    late = 2 * seconds + 8.0  # what TCP has lost it says again later
    async for item in stream:
        items.append(item)
    scene.same(items, [(other, number) for number in range(40)], "a stream")
    for number, call in calls:
        found = await scene.soon(call, f"call {number}", late)
        scene.same(found, [(rank, number) for rank in range(3)], f"call {number}")
    scene.same(await scene.soon(early, "the sends", late), [[None] * 5], "the sends")
    scene.same(await scene.soon(taking, "the receives", late), [[0, 1, 2, 3, 4]], "the receives")
    scene.same(await scene.soon(asking, "a peer's call", late), [[(other, "of a peer")]], "a peer's call")
    for put in puts:
        scene.same(await scene.soon(put, "a put", late), None, "a put")
    scene.same([await channel.get() for _ in range(5)], [*range(5)], "items of a channel")
    for lock in locks:
        scene.same(await scene.soon(lock, "a lock", late), [None], "a lock")
    await asyncio.sleep(late)
    for rank in range(3):
        begun = [each[2] for each in scene.seen("begins", rank=rank) if isinstance(each[2], int)]
        scene.same(begun, [*range(8)], f"calls of rank {rank}")
    scene.same(scene.ranks_of("cancelled", "given up"), scene.ranks_of("begins", "given up"), "a call that is given up")
    scene.same((scene.deaths, len(scene.seen("has"))), ([], 3), "deaths, and who had the lock")
    await channel.close()


async def _ask(self: Strict, group: str, rank: int) -> Any:
    return await (await self.find(group))[rank].stay("of a peer", 0.1)


@promise(2, 3, severs=True)
async def a_socket_that_breaks_costs_nothing(scene: Scene) -> None:
    rank, other = scene.two_ranks()
    calls = [(number, scene.group.block(number, 0.0, bytes(scene.rng.choice(SIZES)))) for number in range(4)]
    await turns(scene.rng.randrange(8))
    scene.sim.sever(scene.name, rank, scene.rng.choice(("shutdown", "close")))
    calls += [(number, scene.group.block(number, 0.0, bytes(scene.rng.choice(SIZES)))) for number in range(4, 8)]
    sending = in_task(scene.group[rank].act(_send, scene.name, other, _plan(scene, 6), {}))
    taking = in_task(scene.group[other].act(_take, scene.name, rank, 6))
    await turns(scene.rng.randrange(8))
    scene.sim.sever(scene.name, scene.rng.choice((rank, other)), scene.rng.choice(("shutdown", "close")))
    for number, call in calls:
        found = await scene.soon(call, f"call {number}", 3.0)
        scene.same(found, scene.of_all(number), f"call {number}")
    scene.same(await scene.soon(sending, "the sends", 3.0), [[None] * 6], "the sends")
    scene.same(await scene.soon(taking, "the receives", 3.0), [[0, 1, 2, 3, 4, 5]], "the receives")
    for each in range(scene.size):
        begun = [note[2] for note in scene.seen("begins", rank=each)]
        scene.same(begun, [*range(8)], f"calls of rank {each}")
