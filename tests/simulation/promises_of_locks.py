"""Promises of device locks and ports: their order, their deadlines, and what deaths and closes free."""

from __future__ import annotations

import asyncio

from rlinf_async import ClosedError, DeadlineExceeded
from rlinf_async._worker import context
from rlinf_async._worker.device_lock import DeviceLock
from tests.simulation.strict import Scene, Strict, in_task, outcome, promise


def _lock(self: Strict, devices: list[int]) -> DeviceLock:
    assert context.client is not None
    return DeviceLock(context.client, f"{self._group_name}:{self._rank}", devices)


async def _hold(self: Strict, what: str, devices: list[int], seconds: float, timeout: float | None = None) -> str:
    lock = _lock(self, devices)
    await lock.acquire(timeout)
    self.note("has", what)
    await asyncio.sleep(seconds)
    self.note("frees", what)
    lock.release()
    return what


@promise(4, 5)
async def who_asks_first_has_a_device_first(scene: Scene) -> None:
    """One in the line is given up, dies or is late; the others have their turn at once, in order."""
    first, *line = scene.rng.sample(range(scene.size), scene.size)
    spoiler, how = scene.rng.randrange(len(line) - 1), scene.rng.choice(("cancel", "kill", "late", "none"))
    holds = [in_task(scene.group[first].act(_hold, "first", [7], 2.0))]
    await scene.until(1.0, lambda: bool(scene.seen("has", "first")), "the first has it")
    handles = []
    for place, rank in enumerate(line):
        timeout = 0.5 if how == "late" and place == spoiler else None
        devices = [7] if place != spoiler else scene.rng.choice(([7], [6, 7]))
        handles.append(scene.group[rank].act(_hold, f"turn {place}", devices, 0.3, timeout))
        holds.append(in_task(handles[-1]))
        await asyncio.sleep(0.1)
    ends_first = scene.rng.random() < 0.5
    began = scene.now
    if how == "cancel":
        handles[spoiler].cancel()
    elif how == "kill":
        scene.kill(line[spoiler])
    await asyncio.sleep(0.5)
    if ends_first:
        scene.kill(first)
        began = scene.now
    places = [place for place in range(len(line)) if how == "none" or place != spoiler]
    for number, place in enumerate(places):
        scene.same((await scene.soon(holds[1 + place], f"turn {place}", 4.0)), [f"turn {place}"], "a turn")
        least = 0.3 * (number + 1) - 0.01
        scene.check(not ends_first or least <= scene.now - began < least + 0.2, f"turn {place} is late")
    if how == "late":
        names = f"{scene.name}:{first}"
        scene.is_error(await holds[1 + spoiler], DeadlineExceeded, "one that was late", names)
    has = [each[2] for each in scene.seen("has")]
    scene.same(has, ["first", *(f"turn {place}" for place in places)], "who had the device, in order")
    last = scene.group[line[places[-1]]]
    scene.same(
        await scene.soon(last.act(_hold, "again", [6, 7], 0.0), "a free device", 0.5), ["again"], "a free device"
    )


@promise(3)
async def a_set_of_devices_is_had_as_a_whole(scene: Scene) -> None:
    """A free device of a set that waits is kept for that; who wants another one does not wait."""
    one, two, three = scene.rng.sample(range(3), 3)
    first = in_task(scene.group[one].act(_hold, "first", [1], 1.0))
    await scene.until(1.0, lambda: bool(scene.seen("has", "first")), "the first has it")
    both = in_task(scene.group[two].act(_hold, "both", [1, 2], 0.5))
    await asyncio.sleep(0.2)
    behind, free = (in_task(scene.group[three].act(_hold, what, [d], 0.0)) for what, d in (("behind", 2), ("free", 3)))
    scene.same(await scene.soon(free, "a free device", 0.5), ["free"], "a free device")
    for task in (first, both, behind):
        await scene.soon(task, "a turn", 3.0)
    scene.same([each[2] for each in scene.seen("has")], ["first", "free", "both", "behind"], "who had them, in order")


async def _hold_often(self: Strict, devices: list[int]) -> None:
    lock = _lock(self, devices)
    await lock.acquire()
    await lock.acquire(0.5)  # it waits for nobody
    self.note("has", "twice")
    lock.release()
    await asyncio.sleep(0.5)
    self.note("frees", "twice")
    lock.release()
    error = await outcome(_release(lock))
    self.note("too often", type(error).__name__, lock.is_held)


async def _release(lock: DeviceLock) -> None:
    lock.release()


@promise(2, 3)
async def a_lock_is_free_once_it_is_released_as_often(scene: Scene) -> None:
    one, other = scene.two_ranks()
    twice = in_task(scene.group[one].act(_hold_often, [4]))
    await scene.until(1.0, lambda: bool(scene.seen("has", "twice")), "it has it twice")
    scene.same(await scene.soon(scene.group[other].act(_hold, "next", [4], 0.0), "the next"), ["next"], "the next")
    await twice
    order = [each[1:3] for each in scene.all_seen() if each[1] in ("has", "frees")]
    wanted = [("has", "twice"), ("frees", "twice"), ("has", "next"), ("frees", "next")]
    scene.same(order, wanted, "what happened, in order")
    scene.same([each[2:] for each in scene.seen("too often")], [("RuntimeError", False)], "one release too many")


@promise(2)
async def the_close_of_a_group_frees_its_devices(scene: Scene) -> None:
    others = await scene.launch("others", [scene.rng.randrange(scene.nodes)])
    holding = [in_task(scene.group[0].act(_hold, "holds", [5], 500.0))]
    await scene.until(1.0, lambda: bool(scene.seen("has", "holds")), "it has it")
    holding.append(in_task(scene.group[1].act(_hold, "waits", [5], 500.0)))
    await asyncio.sleep(0.1)
    waiting = in_task(others.act(_hold, "theirs", [5], 0.0))
    await asyncio.sleep(0.1)
    await scene.group.close()
    scene.same(await scene.soon(waiting, "one of another group", 1.0), ["theirs"], "one of another group")
    for call in holding:
        scene.is_error(await scene.soon(call, "a call of the closed group"), ClosedError, "a call of the closed group")
    await others.close()


async def _want_port(self: Strict) -> int:
    return int(await self.acquire_free_port())


@promise(2, 3)
async def a_port_is_promised_once(scene: Scene) -> None:
    ports = [(await scene.group[rank].act(_want_port))[0] for rank in range(scene.size) for _ in range(3)]
    by_node: dict[int, list[int]] = {}
    for place, port in zip([scene.places[number // 3] for number in range(len(ports))], ports, strict=True):
        by_node.setdefault(place, []).append(port)
    for node, found in by_node.items():
        scene.same(len(set(found)), len(found), f"ports of node {node}")
