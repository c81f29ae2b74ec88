"""Execution of a program's steps, channels aside."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys

from tests.faults import injections, steps, traffic
from tests.faults.journal import all_of
from tests.faults.scene import HungError, Life, Scene, send_signal
from tests.faults.storm import storm
from tests.faults.subject import whole

# -- calls ----------------------------------------------------------------------------------------------------------


async def call(scene: Scene, step: steps.Call) -> None:
    life = scene.live[step.to]
    nonces = [next(scene.nonces) for _ in range(step.times)]
    name = f"{step} of {life.name}"
    if step.kind == "peer":
        asked = life.group.ask_peer(scene.other(step.to).name, nonces, step.size)
        scene.script(name, asked, deadline=step.deadline)
    elif step.kind == "thread":
        scene.waits.start_thread(name, functools.partial(_call_in_thread, scene, life, nonces, step.size))
    elif step.kind == "stream":
        scene.waits.start(name, _stream(scene, life, nonces[0], step))
    else:
        scene.waits.start(name, _echo(scene, life, nonces, step))


async def _echo(scene: Scene, life: Life, nonces: list[int], step: steps.Call) -> None:
    tasks = []
    for nonce in nonces:
        payload = bytes(step.size)
        entry = scene.journal.begin("call", nonce, life.name)
        handle = life.group.echo(nonce, payload) if step.kind == "def" else life.group.echo_later(nonce, payload, 0.02)
        tasks.append(traffic.started(scene.journal, entry, handle, whole(nonce, step.size)))
    async with asyncio.timeout(step.deadline):
        await all_of(tasks)


async def _stream(scene: Scene, life: Life, nonce: int, step: steps.Call) -> None:
    with scene.journal.noted("call", nonce, life.name):
        async with asyncio.timeout(step.deadline):
            expected = 0
            async for _, (came_for, number, payload) in life.group.count(nonce, step.times, step.size):
                assert (came_for, number, len(payload)) == (nonce, expected, step.size), "a stream out of order"
                expected += 1
            assert expected == step.times, f"a stream of {expected} of {step.times} items"


def _call_in_thread(scene: Scene, life: Life, nonces: list[int], size: int) -> None:
    for nonce in nonces:
        entry = scene.journal.begin("call", nonce, life.name)
        try:
            value = whole(nonce, size)(life.group.echo(nonce, bytes(size)).wait())
        except Exception as error:
            scene.journal.end(entry, error=error)
        else:
            scene.journal.end(entry, value)


# -- messages -------------------------------------------------------------------------------------------------------


async def send(scene: Scene, step: steps.Send) -> None:
    source, target = scene.live[step.source], scene.other(step.source)
    receive = target.group.recv_many(source.name, step.times, step.deadline)
    scene.script(f"the receiver of {step}", receive, "recv")
    method = source.group.send_blocking if step.blocking else source.group.send_many
    scene.script(f"the sender of {step}", method(target.name, step.times, step.size), "send", step.deadline)


async def end_messages(scene: Scene, role: str) -> None:
    """What a worker has sent is received; each receive that waits for more gets something."""
    source, target = scene.live[role], scene.other(role)
    (pending,) = await scene.now(f"pending() of {target.name}", target.group.pending(source.name))
    scene.script(f"what {target.name} still receives", target.group.drain(source.name))
    scene.script(f"the end of what {source.name} sends", source.group.send_ends(target.name, pending + 1))


# -- time -----------------------------------------------------------------------------------------------------------


async def cancel(scene: Scene, step: steps.Cancel) -> None:
    await asyncio.sleep(0)
    scene.waits.cancel(step.index)


async def pause(scene: Scene, step: steps.Pause) -> None:
    await asyncio.sleep(step.seconds)


async def settle(scene: Scene, step: steps.Settle) -> None:
    if hung := await scene.waits.settle(but=("channel", "recv", "send")):
        raise HungError(f"{step}: {[wait.name for wait in hung]}")


# -- faults ---------------------------------------------------------------------------------------------------------


async def fork(scene: Scene, step: steps.Fork) -> None:
    if step.where != "driver":
        scene.script(f"{step}", scene.live[step.where].group.fork(step.seconds, scene.other(step.where).name))
        return
    group = scene.live["a"].group
    wait = injections.fork(step.seconds, lambda: group.echo(0, b"").wait())

    def wait_for_child() -> None:
        with scene.journal.noted("fork", "driver"):
            wait()

    scene.waits.start_thread(f"{step}", wait_for_child)


async def starve(scene: Scene, step: steps.Starve) -> None:
    scene.starved = True
    scene.lasts(step.seconds)
    scene.script(f"{step}", scene.live[step.worker].group.starve(step.seconds, step.spare))


async def sever(scene: Scene, step: steps.Sever) -> None:
    scene.script(f"{step}", scene.live[step.worker].group.sever(step.how, step.which))


async def stop(scene: Scene, step: steps.Stop) -> None:
    pid = scene.live[step.worker].pid
    scene.lasts(step.seconds)

    async def go_on_later() -> None:
        try:
            await asyncio.sleep(step.seconds)
        finally:
            send_signal(pid, signal.SIGCONT)

    send_signal(pid, signal.SIGSTOP)
    scene.waits.start(f"{step}", go_on_later())
    scene.waits.all[-1].cancellable = False


async def kill(scene: Scene, step: steps.Kill) -> None:
    life = scene.live[step.worker]
    scene.killed.add(life.name)
    send_signal(life.pid, signal.SIGKILL)
    await scene.launch(step.worker)


async def exec_(scene: Scene, step: steps.Exec) -> None:
    life = scene.live[step.worker]
    scene.killed.add(life.name)
    scene.replaced.append(life)
    scene.script(f"{step}", life.group.become_sleep())
    await scene.now(f"a word about {life.name}", scene.words.about(f"{life.name}.become_sleep()"))


async def kill_daemon(scene: Scene, step: steps.KillDaemon) -> None:
    scene.daemon_died = True
    loop, group = asyncio.get_running_loop(), scene.live["a"].group
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that threads meet in the middle of what they do
    try:
        begun = []
        for _ in range(step.threads):
            begin = asyncio.Event()
            begun.append(begin.wait())
            calls = functools.partial(storm, group, scene.cluster._client, loop, begin)
            scene.waits.start_thread(f"a thread of {step}", calls)
        await asyncio.gather(*begun)
        send_signal(scene.daemon, signal.SIGKILL)
        await scene.waits.settle()
    finally:
        sys.setswitchinterval(interval)
