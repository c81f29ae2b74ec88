"""Channel steps of random programs: put, get, close, and uses that come too late."""

from __future__ import annotations

from rlinf_async import Channel
from tests.faults import steps, traffic
from tests.faults.scene import Incarnation, Scene


async def open_(scene: Scene, step: steps.Open) -> None:
    line = scene.channels.setdefault(step.channel, [])
    if line and not line[-1].is_closed:
        await close(scene, steps.Close(step.channel))
    channel = Channel.create(step.channel, maxsize=step.maxsize, cluster=scene.cluster)
    number = sum(map(len, scene.channels.values()))
    line.append(Incarnation(number, channel))
    if step.handed:  # before anybody knows more of it than its name
        for life in scene.live.values():
            scene.script(f"{life.name} holds channel {number}", life.group.hold(number, channel))
    await scene.now(f"{step}", _made(channel))


async def _made(channel: Channel) -> None:
    await channel


async def close(scene: Scene, step: steps.Close) -> None:
    found = await _find(scene, step.channel, step.age)
    found.is_closed = True
    if step.discard:
        scene.discarded.add(found.number)
    with scene.journal.noted("close", found.number):
        await scene.now(f"{step}", found.channel.close(discard=step.discard))


async def put(scene: Scene, step: steps.Put) -> None:
    found = await _find(scene, step.channel, step.age)
    numbers = [scene.items.next(found.number) for _ in range(step.times)]
    name = f"{step} into channel {found.number}"
    arguments = (found.channel, found.number, numbers, step.size, step.deadline)
    if step.who == "driver":
        scene.waits.start(name, traffic.put(scene.journal, *arguments), "channel")
    elif step.who == "thread":
        scene.waits.start_thread(name, lambda: traffic.put_blocking(scene.journal, *arguments), "channel")
    else:
        scene.script(name, scene.live[step.who].group.put(*arguments), "channel")


async def get(scene: Scene, step: steps.Get) -> None:
    found = await _find(scene, step.channel, step.age)
    name = f"{step} from channel {found.number}"
    arguments = (found.channel, found.number, step.times, step.deadline)
    if step.who == "driver":
        scene.waits.start(name, traffic.get(scene.journal, *arguments), "channel")
    elif step.who == "thread":
        scene.waits.start_thread(name, lambda: traffic.get_blocking(scene.journal, *arguments), "channel")
    else:
        scene.script(name, scene.live[step.who].group.get(*arguments), "channel")


async def _find(scene: Scene, name: str, age: int) -> Incarnation:
    """The channel that had the name so many channels ago; the oldest, where there were fewer."""
    if name not in scene.channels:
        await open_(scene, steps.Open(name))
    line = scene.channels[name]
    return line[max(0, len(line) - 1 - age)]


def incarnations(scene: Scene) -> list[Incarnation]:
    return [found for line in scene.channels.values() for found in line]


async def close_all(scene: Scene) -> None:
    for found in incarnations(scene):
        if not found.is_closed:
            await scene.now(f"the closing of channel {found.number}", found.channel.close())


async def drain_all(scene: Scene) -> None:
    """Takes what nobody has taken."""
    for found in incarnations(scene):
        await scene.now(f"what is left in channel {found.number}", _drain(scene, found))


async def _drain(scene: Scene, found: Incarnation) -> None:
    is_over = False
    while not is_over:
        entry = scene.journal.begin("get", found.number)
        try:
            came_from, number, _ = await found.channel.get()
        except Exception as error:
            scene.journal.end(entry, error=error)
            is_over = True
        else:
            scene.journal.end(entry, [came_from, number, False])
