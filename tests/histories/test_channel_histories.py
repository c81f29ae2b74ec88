"""Channels under kills and cancels: nothing is lost, nothing is made up, nothing comes twice without saying so."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from rlinf_async import Channel, ClosedError, Cluster, EndOfChannel, NodePlacementStrategy, WorkerDied
from tests.histories.history import History
from tests.histories.workers import LARGE_EVERY, Consumer, Producer

KEYS = 4


class Run:
    """Producers and consumers that are killed now and then, and replaced, until every item has been taken."""

    def __init__(self, cluster: Cluster, folder: Path, nodes: int, seed: int) -> None:
        self.history = History(keys=KEYS)
        self.kills = 0
        self._cluster = cluster
        self._folder = folder
        self._nodes = nodes
        self._chance = random.Random(seed)
        self._numbers = itertools.count(1)
        self._alive: dict[int, int] = {}
        """Pids, by number."""
        self._consumers: list[int] = []
        self.unwritten = 0
        """Large items that killed consumers may have had without writing them down: a loop has one at a time."""

    async def go(self, items: int, producers: int, consumers: int, pause: float, maxsize: int, way: str) -> None:
        """Consumers take from all keys, many gets at a time, or each from a key of its own, in loops or leases."""
        bounded = way == "consume" and maxsize
        channel = await Channel.create(
            "history", maxsize=maxsize, max_bytes=4 << 20 if bounded else 0, cluster=self._cluster
        )
        async with asyncio.TaskGroup() as tasks:
            consuming = [tasks.create_task(self._consume(channel, way, key)) for key in range(consumers)]
            nemesis = tasks.create_task(self._kill_now_and_then(pause))
            observing = [tasks.create_task(self._observe(channel))] if way != "consume" else []
            async with asyncio.TaskGroup() as producing:
                for _ in range(producers):
                    producing.create_task(self._produce(channel, items // producers))
            await channel.close()
            await asyncio.wait(consuming)
            for task in (nemesis, *observing):
                task.cancel()
        for consumer in self._consumers:
            with self._journal(consumer).open() as lines:
                self.history.take(consumer, lines)

    async def _produce(self, channel: Channel, count: int) -> None:
        """Until as many items have been accepted, by as many lives as that takes."""
        while count > 0:
            me = next(self._numbers)
            self.history.planned[me] = count
            await self._live(Producer, "produce", me, channel, me, count, KEYS, 16, str(self._journal(me)))
            before = len(self.history.accepted)
            with self._journal(me).open() as lines:
                self.history.accept(me, lines)
            count -= len(self.history.accepted) - before

    async def _consume(self, channel: Channel, way: str, key: int) -> None:
        """Until the end of the channel."""
        while True:
            me = next(self._numbers)
            self._consumers.append(me)
            which = (KEYS, 8) if way == "consume" else (key,)
            if await self._live(Consumer, way, me, channel, me, *which, str(self._journal(me))):
                return
            self.unwritten += way == "loop_over"

    async def _observe(self, channel: Channel) -> None:
        """By somebody who takes nothing, and is not killed."""
        spec = Consumer.create_group()
        async with spec.launch(self._cluster, placement=NodePlacementStrategy([0]), name="observer") as group:
            with contextlib.suppress(EndOfChannel, ClosedError):
                await group.observe(channel, KEYS)

    async def _live(self, kind: Any, method: str, me: int, *arguments: Any) -> bool:
        """One life; False if it was ended by force."""
        self._journal(me).touch()
        spec, strategy = kind.create_group(), NodePlacementStrategy([me % self._nodes])
        async with spec.launch(self._cluster, placement=strategy, name=f"{kind.__name__}-{me}") as group:
            (self._alive[me],) = await group.pid()
            try:
                await getattr(group, method)(*arguments)
            except WorkerDied:
                return False
            finally:
                del self._alive[me]
            return True

    async def _kill_now_and_then(self, pause: float) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * pause)
            if self._alive:
                me = self._chance.choice(list(self._alive))
                self.history.killed.add(me)
                self.kills += 1
                with contextlib.suppress(ProcessLookupError):  # it was killed before, and nobody has said so yet
                    os.kill(self._alive[me], signal.SIGKILL)

    def _journal(self, me: int) -> Path:
        return self._folder / f"{me}.journal"


async def judge(
    items: int, folder: Path, *, nodes: int, pause: float, seed: int, maxsize: int = 0, way: str = "consume"
) -> Run:
    """Without a ``maxsize`` puts of the channel's own node are done when they are sent."""
    async with Cluster(local_nodes=nodes, log_to_driver=False) as cluster:
        run = Run(cluster, folder, nodes, seed)
        await run.go(items, producers=3, consumers=KEYS, pause=pause, maxsize=maxsize, way=way)
    history = run.history
    print(f"\n{run.kills} kills; {history.told()}")
    assert len(history.lost()) <= run.unwritten
    assert all(number % LARGE_EVERY == 0 for _, number in history.lost())
    assert not history.unexpected()
    assert not history.duplicated()
    assert not history.out_of_order()
    assert len({taken.identity for taken in history.taken}) >= items - run.unwritten
    return run


WAYS = pytest.mark.parametrize(
    ("maxsize", "way"),
    [
        pytest.param(0, "consume", id="sent"),
        pytest.param(64, "consume", id="bounded", marks=pytest.mark.slow),
        pytest.param(0, "loop_over", id="loops", marks=pytest.mark.slow),
        pytest.param(64, "lease", id="leases", marks=pytest.mark.slow),
    ],
)  # fmt: skip


# On two nodes: half of the producers and consumers are beside the channel, as all are on one.
@WAYS
async def test_thousands_of_items_survive_kills_and_cancels(maxsize: int, way: str, tmp_path: Path) -> None:
    items, pause = (2000, 0.4) if way == "lease" else (8000, 0.1)
    run = await judge(items, tmp_path, nodes=2, pause=pause, seed=2, maxsize=maxsize, way=way)
    assert run.kills


@pytest.mark.histories
@WAYS
@pytest.mark.parametrize("seed", range(4))
async def test_a_million_items_survive_kills_and_cancels(seed: int, maxsize: int, way: str, tmp_path: Path) -> None:
    await judge(250_000, tmp_path, nodes=1 + seed % 2, pause=0.5, seed=seed, maxsize=maxsize, way=way)
