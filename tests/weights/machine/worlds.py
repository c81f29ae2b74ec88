"""Three places for a program of weights: links within a process, a simulated cluster, and real processes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol

from rlinf_async import Cluster, NodePlacementStrategy, Worker, follow, publish
from rlinf_async._simulation.small_limits import small_limits
from rlinf_async.errors import ClosedError, PeerLost, WorkerDied
from rlinf_async.testing import SimCluster
from rlinf_async.weights import Publisher, Subscriber
from tests._support.weight_parts import LocalLink
from tests.weights.far_links import FarLink
from tests.weights.machine.sides import Follower, Trainer, open_slots

FOLLOWERS = 3
OPTIONS = ("apply", "verify", "ack_timeout")


class World(Protocol):
    """A trainer and followers, and what may happen to them.

    Attributes:
        second: how long an act of one second takes here.
    """

    second: float

    async def trainer(self, act: str, *arguments: Any, **options: Any) -> Any: ...

    async def follower(self, who: int, act: str, *arguments: Any, **options: Any) -> Any: ...

    async def trainer_dies(self) -> None: ...

    async def die(self, who: int) -> None: ...

    async def stop(self, who: int, seconds: float) -> None: ...


Play = Callable[[World], Coroutine[Any, Any, None]]


# -- within a process -----------------------------------------------------------------------------------------------


class _Publication:
    """A publisher, as ``publish`` has it."""

    def __init__(self, local: Local, model: Any, how: dict[str, Any]) -> None:
        options = {name: how[name] for name in OPTIONS}
        self.publisher = Publisher(model, behind=how["behind"], **options)
        self._waits = not how["behind"]
        self._last: Any = None
        self._told: Any = None
        """The version of which the trainer has heard what became."""
        self._behind = how["behind"]
        self._handles: list[Any] = []
        self.connect = self.publisher.connect
        self._turn = asyncio.Lock()
        for who, link in local.waiting.items():
            self.publisher.add(who, link)
        local.waiting.clear()
        local.publisher = self.publisher

    @property
    def version(self) -> int:
        return self.publisher.version

    async def send(self, weights: Any, *, version: int, timeout: float) -> int:
        async with self._turn:
            if self._waits and self._last is not None and self._last is not self._told:
                await self._report(None)
            self._last = await self.publisher.publish(weights, version=version, timeout=timeout)
            self._handles.append(self._last)
            under_way = [handle for handle in self._handles if not handle.done()]
            behind = await _pending(under_way[: -self._behind - 1], 0.2)
            assert not behind, f"versions {behind} are under way, and followers may not be so far behind"
            return int(self._last.version)

    async def undelivered(self) -> list[int]:
        return await _pending(self._handles, 5.0)

    async def delivered(self, timeout: float | None) -> Any:
        if self._last is None:
            raise RuntimeError("nothing was sent yet")
        return await self._report(timeout)

    async def _report(self, timeout: float | None) -> Any:
        last = self._last
        try:
            return await last.async_wait(timeout)
        finally:
            if last.done():
                self._told = last

    async def close(self) -> None:
        await self.publisher.close()


async def _pending(handles: list[Any], seconds: float) -> list[int]:
    """Return the versions that do not end soon; another thread may be about to end one."""
    if waits := [asyncio.create_task(handle.async_wait()) for handle in handles if not handle.done()]:
        await asyncio.wait(waits, timeout=seconds)
    found = [handle.version for handle in handles if not handle.done()]
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    return found


class _Following:
    """A subscriber that serves, as ``follow`` has it."""

    def __init__(self, local: Local, who: int, model: Any, how: dict[str, Any]) -> None:
        to_receiver, self.link = _link_to(how["nodes"][who])
        self.subscriber = Subscriber(self.link, model, **{name: how[name] for name in OPTIONS})
        self.serving = self.subscriber.serve()
        self.reading, self.wait_version = self.subscriber.reading, self.subscriber.wait_version
        self.accept = self.subscriber.accept
        if local.publisher is None or local.trainer_side.weights is None:
            local.waiting[who] = to_receiver
        else:
            local.publisher.add(who, to_receiver)

    @property
    def version(self) -> int:
        return self.subscriber.version

    async def close(self) -> None:
        await self.subscriber.close()


def _link_to(node: int) -> tuple[LocalLink, LocalLink]:
    if not node:
        return LocalLink.pair()
    ends = FarLink.far_pair()
    for end in ends:
        end.node = node
    return ends


class Local:
    """A publisher and subscribers over links within this process, some of them as if on other machines."""

    second = 0.001

    def __init__(self) -> None:
        self.publisher: Publisher | None = None
        self.waiting: dict[int, LocalLink] = {}
        self._begin()
        self.followers = [self._new(who) for who in range(FOLLOWERS)]
        self._timers: list[asyncio.TimerHandle] = []

    def _begin(self) -> None:
        self.trainer_side = Trainer(lambda model, how: _Publication(self, model, how))

    def _new(self, who: int) -> Follower:
        return Follower(lambda model, how: _Following(self, who, model, how))

    async def trainer(self, act: str, *arguments: Any, **options: Any) -> Any:
        return await getattr(self.trainer_side, act)(*arguments, **options)

    async def follower(self, who: int, act: str, *arguments: Any, **options: Any) -> Any:
        return await getattr(self.followers[who], act)(*arguments, **options)

    async def trainer_dies(self) -> None:
        await self.trainer_side.close()
        await self.trainer_side.rest(5)

    async def die(self, who: int) -> None:
        dead, self.followers[who] = self.followers[who], self._new(who)
        self.waiting.pop(who, None)
        if dead.weights is not None:
            with contextlib.suppress(ValueError):  # followers of a publication are removed before their link ends
                if self.publisher is not None and who in self.publisher.worker_ids:
                    self.publisher.remove(who)
            dead.weights.link.close(PeerLost("who is dead says nothing"))
            await dead.release()
            await dead.leave()
        await dead.forget()

    async def stop(self, who: int, seconds: float) -> None:
        """Have it hear words, and not act on them."""
        following = self.followers[who].weights
        if following is not None:
            following.serving.cancel()
            await asyncio.wait([following.serving])
            self._timers.append(asyncio.get_running_loop().call_later(seconds, self._go_on, following))

    def _go_on(self, following: _Following) -> None:
        with contextlib.suppress(ClosedError):
            if following.serving.done():
                following.serving = following.subscriber.serve()

    async def end(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for side in self.followers:
            await side.release()
            await side.leave()
        if self.trainer_side.weights is not None:
            await self.trainer_side.close()
        await self.trainer_side.rest(5)


def in_a_process(how: dict[str, Any], play: Play) -> None:
    async def main() -> None:
        local = Local()
        try:
            await play(local)
        finally:
            await local.end()

    with _few_objects():
        asyncio.run(main())


@contextlib.contextmanager
def _few_objects() -> Any:
    """Have collections look at what comes from now on alone: there are several in a program, and torch is large."""
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()  # what the next one would freeze
        gc.unfreeze()


# -- in a cluster ---------------------------------------------------------------------------------------------------


class End(Worker):
    """A trainer or a follower."""

    def __init__(self, role: str) -> None:
        super().__init__()
        side: Any
        if role == "trainer":
            side = Trainer(lambda model, how: publish(model, "rollout", behind=how["behind"], **_chosen(how)))
        else:
            side = Follower(lambda model, how: follow(model, of="trainer", **_chosen(how)))
        self._side = side

    async def act(self, name: str, arguments: list[Any], options: dict[str, Any]) -> Any:
        return await getattr(self._side, name)(*arguments, **options)


def _chosen(how: dict[str, Any]) -> dict[str, Any]:
    return {name: how[name] for name in OPTIONS}


class Clustered:
    """Workers of a cluster, each of which is restarted when it dies."""

    def __init__(self, cluster: Cluster, nodes: list[int], second: float, faults: Any) -> None:
        self.second = second
        self._faults = faults
        self._groups = {
            name: End.create_group(role=name).launch(
                cluster, NodePlacementStrategy(places), name=name, restart="rank", max_restarts=100
            )
            for name, places in (("trainer", [0]), ("rollout", nodes))
        }

    async def ready(self) -> None:
        for group in self._groups.values():
            await group

    async def trainer(self, act: str, *arguments: Any, **options: Any) -> Any:
        return await self._call("trainer", 0, act, arguments, options)

    async def follower(self, who: int, act: str, *arguments: Any, **options: Any) -> Any:
        return await self._call("rollout", who, act, arguments, options)

    async def _call(self, group: str, rank: int, act: str, arguments: Any, options: Any) -> Any:
        (found,) = await self._groups[group][rank].act(act, list(arguments), options)
        return found

    async def trainer_dies(self) -> None:
        await self._die("trainer", 0)

    async def die(self, who: int) -> None:
        await self._die("rollout", who)

    async def _die(self, group: str, rank: int) -> None:
        self._faults.kill(group, rank)
        with contextlib.suppress(WorkerDied):
            await self._call(group, rank, "ended", [0.0], {})

    async def stop(self, who: int, seconds: float) -> None:
        self._faults.stop("rollout", who, seconds)


def simulated(how: dict[str, Any], play: Play) -> Any:
    """Play in a simulated cluster of three nodes; weights of some KB pass through a chain, if ``how`` says so."""
    limits: contextlib.AbstractContextManager[dict[str, int]] = contextlib.nullcontext({})
    with small_limits() if how["has_small_limits"] else limits as settings:
        sim = SimCluster(nodes=3, seed=how["seed"], settings=settings)

        async def main() -> Any:
            async with Cluster(log_to_driver=False) as cluster, asyncio.timeout(100_000):
                world = Clustered(cluster, how["nodes"], 1.0, sim)
                await world.ready()
                await play(world)

        before = open_slots()
        try:
            with _few_objects():
                return sim.run(main)
        finally:
            for descriptor in open_slots().keys() - before.keys():  # simulated deaths give nothing back
                os.close(descriptor)


class _Signals:
    """Faults of real processes."""

    def __init__(self) -> None:
        self.groups: dict[str, Any] = {}

    def _pid(self, group: str, rank: int) -> int:
        return int(self.groups[group].worker_info_list[rank].worker.pid)

    def kill(self, group: str, rank: int) -> None:
        os.kill(self._pid(group, rank), signal.SIGKILL)

    def stop(self, group: str, rank: int, seconds: float) -> None:
        pid = self._pid(group, rank)
        os.kill(pid, signal.SIGSTOP)

        def go_on() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        asyncio.get_running_loop().call_later(seconds, go_on)


@contextlib.asynccontextmanager
async def over_processes() -> AsyncIterator[Clustered]:
    faults = _Signals()
    async with Cluster(num_nodes=2, local_nodes=2, log_to_driver=False) as cluster:
        world = Clustered(cluster, [0, 1, 1], 0.05, faults)
        faults.groups = world._groups
        await world.ready()
        yield world
