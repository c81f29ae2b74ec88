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
from tests.histories.workers import Consumer, Producer

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
        self.ahead = 0
        """Gets that were sent ahead by consumers that came to their end."""

    async def go(
        self, items: int, producers: int, consumers: int, pause: float, maxsize: int, one_by_one: bool
    ) -> None:
        """Consumers take from all keys, many gets at a time, or ``one_by_one``, each from a key of its own."""
        channel = await Channel.create(
            "history", maxsize=maxsize, max_bytes=0 if one_by_one else 4 << 20, cluster=self._cluster
        )
        async with asyncio.TaskGroup() as tasks:
            consuming = [
                tasks.create_task(self._consume(channel, key if one_by_one else None)) for key in range(consumers)
            ]
            nemesis = tasks.create_task(self._kill_now_and_then(pause))
            observing = [tasks.create_task(self._observe(channel))] if one_by_one else []
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

    async def _consume(self, channel: Channel, key: int | None) -> None:
        """Until the end of the channel."""
        ahead: int | None = None
        while ahead is None:
            me = next(self._numbers)
            self._consumers.append(me)
            if key is None:
                ahead = await self._live(Consumer, "consume", me, channel, me, KEYS, 8, str(self._journal(me)))
            else:
                ahead = await self._live(Consumer, "consume_one_by_one", me, channel, me, key, str(self._journal(me)))
        self.ahead += ahead

    async def _observe(self, channel: Channel) -> None:
        """By somebody who takes nothing, and is not killed."""
        spec = Consumer.create_group()
        async with spec.launch(self._cluster, placement=NodePlacementStrategy([0]), name="observer") as group:
            with contextlib.suppress(EndOfChannel, ClosedError):
                await group.observe(channel, KEYS)

    async def _live(self, kind: Any, method: str, me: int, *arguments: Any) -> int | None:
        """What one life has returned, or 0; None if it was ended by force."""
        self._journal(me).touch()
        spec, strategy = kind.create_group(), NodePlacementStrategy([me % self._nodes])
        async with spec.launch(self._cluster, placement=strategy, name=f"{kind.__name__}-{me}") as group:
            (self._alive[me],) = await group.pid()
            try:
                (found,) = await getattr(group, method)(*arguments)
            except WorkerDied:
                return None
            finally:
                del self._alive[me]
            return found or 0

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
    items: int, folder: Path, *, nodes: int, pause: float, seed: int, maxsize: int = 0, one_by_one: bool = False
) -> Run:
    """Without a ``maxsize`` what the channel's own node puts is put on credit."""
    async with Cluster(local_nodes=nodes, log_to_driver=False) as cluster:
        run = Run(cluster, folder, nodes, seed)
        await run.go(items, producers=3, consumers=KEYS, pause=pause, maxsize=maxsize, one_by_one=one_by_one)
    history = run.history
    print(f"\n{run.kills} kills; {run.ahead} gets ahead; {history.told()}")
    assert not history.lost()
    assert not history.unexpected()
    assert not history.duplicated()
    assert not history.out_of_order()
    assert len(history.taken) >= items
    return run


# On two nodes: half of the producers and consumers are beside the channel, as all are on one.
@pytest.mark.parametrize("maxsize", [64, 0], ids=["bounded", "credit"])
async def test_thousands_of_items_survive_kills_and_cancels(maxsize: int, tmp_path: Path) -> None:
    run = await judge(8000, tmp_path, nodes=2, pause=0.1, seed=2, maxsize=maxsize)
    assert run.kills


async def test_thousands_of_items_survive_consumers_that_are_read_ahead_of(tmp_path: Path) -> None:
    run = await judge(8000, tmp_path, nodes=2, pause=0.1, seed=2, one_by_one=True)
    assert run.kills
    assert run.ahead


@pytest.mark.histories
@pytest.mark.parametrize("seed", range(2))
async def test_half_a_million_items_survive_consumers_that_are_read_ahead_of(seed: int, tmp_path: Path) -> None:
    run = await judge(250_000, tmp_path, nodes=1 + seed, pause=0.5, seed=seed, one_by_one=True)
    assert run.ahead


@pytest.mark.histories
@pytest.mark.parametrize("seed", range(4))
async def test_a_million_items_survive_kills_and_cancels(seed: int, tmp_path: Path) -> None:
    await judge(250_000, tmp_path, nodes=1 + seed % 2, pause=0.5, seed=seed, maxsize=64 if seed < 2 else 0)
