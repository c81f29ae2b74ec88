"""rlinf_async as a contestant of the data exchange benches: ``send``, ``recv``, ``broadcast`` and channels."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import exchanges
import works
from talking import Talking, key_of, ones
from works import Samples, ticks

import rlinf_async  # an older version, which --against measures, has no Experience
from rlinf_async import Channel, Cluster, FlexiblePlacementStrategy, NodePlacementStrategy, Work, Worker

GROUP = 8
"""Samples in a group."""

GROUPS = 8
"""Groups that the consumer of an experience takes at once."""


class Bench(Talking, Worker):
    """Blocking methods of ``Talking``, which RLinf has too, and coroutines that do the same."""

    def __init__(self) -> None:
        super().__init__()

    async def swap_async(self, size: int, count: int) -> Samples:
        mine = ones(size)
        to = (self._group_name, 1 - self._rank)
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            if self._rank == 0:
                await self.send(mine, *to)
                await self.recv(*to)
            else:
                await self.recv(*to)
                await self.send(mine, *to)
            samples.append(time.perf_counter() - began)
        return samples

    async def produce_async(self, channel: Channel, count: int, size: int, in_flight: int, keys: int) -> float:
        item = ones(size) if size else 1
        began = time.perf_counter()
        await in_turn(count, in_flight, lambda index: channel.put(item, **key_of(index, keys)))
        return began

    async def consume_async(self, channel: Channel, count: int, in_flight: int, keys: int) -> float:
        await in_turn(count, in_flight, lambda index: channel.get(**key_of(index, keys)))
        return time.perf_counter()

    async def loop_over(self, channel: Channel, count: int) -> float:
        items = aiter(channel)
        for _ in range(count):
            await anext(items)
        return time.perf_counter()

    async def contribute(self, experience: rlinf_async.Experience, count: int, size: int, in_flight: int) -> float:
        sample = ones(size) if size else 1
        began = time.perf_counter()
        await in_turn(count, in_flight, lambda index: experience.put(sample, version=0, group=index // GROUP))
        return began

    async def take_batches(self, experience: rlinf_async.Experience, count: int) -> float:
        while count > 0:
            async with experience.take(GROUPS) as batch:
                count -= len(batch.items)
        return time.perf_counter()

    async def wait_for(self, channel: Channel, peers: int, count: int, rounds: int, filling: bool) -> Samples:
        """Return the lateness of this worker's loop while many ``recv``s and ``get``s on as many keys are pending.

        Args:
            filling: True to measure while items arrive, False while none do.
        """
        delays: Samples = []
        for _ in range(rounds):
            pending = [self.recv(self._group_name, 1 + index % peers) for index in range(count)]
            pending += [channel.get(key=key) for key in range(count)]
            if not filling:
                delays += await ticks(200)
            for peer in range(1, peers + 1):
                await channel.put(None, key=("fill", peer))
            done = asyncio.Event()
            ticking = asyncio.create_task(ticks(None, done))
            for work in pending:
                await work
            done.set()
            late = await ticking
            delays += late if filling else []
        return delays

    async def fill(self, channel: Channel, peers: int, count: int, rounds: int) -> None:
        """Send the items that the other worker waits for, in reverse order of the keys."""
        for _ in range(rounds):
            await channel.get(key=("fill", self._rank))
            for key in reversed(range(self._rank - 1, count, peers)):
                await self.send(key, self._group_name, 0)
                await channel.put(key, key=key)


async def in_turn(count: int, in_flight: int, start: Callable[[int], Work[Any]]) -> None:
    if in_flight == 1:
        for index in range(count):
            await start(index)
        return
    window: deque[Work[Any]] = deque()
    for index in range(count):
        if len(window) == in_flight:
            await window.popleft()
        window.append(start(index))
    for work in window:
        await work


class Ours(exchanges.Exchange):
    """rlinf_async with worker 0 on the first node, and the others on the last one.

    Args:
        num_nodes: nodes of the existing run, under ``rlinf-launch``.
        local_nodes: number of nodes on this machine.
        gpu: True if two workers share the first GPU.
    """

    def __init__(self, num_nodes: int, local_nodes: int | None, gpu: bool) -> None:
        self._num_nodes = num_nodes
        self._local_nodes = local_nodes
        self._device = "cuda" if gpu else "cpu"

    async def start(self, workers: int) -> None:
        self._cluster = await Cluster(num_nodes=self._num_nodes, local_nodes=self._local_nodes)
        nodes = [0, *[self._num_nodes - 1] * (workers - 1)]
        spec = Bench.create_group()
        if self._device == "cpu":
            self._group = spec.launch(self._cluster, NodePlacementStrategy(nodes), name="bench")
        else:
            self._group = spec.launch(self._cluster, FlexiblePlacementStrategy([[0]] * workers), name="bench")
        await self._group
        self._channel = await Channel.create("items", cluster=self._cluster)

    async def stop(self) -> None:
        await self._cluster.aclose()

    async def swap(self, size: int, count: int, way: str, read: bool) -> Samples:
        pair = self._group.execute_on(0, 1)
        if way == "async":
            both = await pair.swap_async(size, count)
        else:
            both = await pair.swap(size, count, way, read, self._device)
        samples: Samples = both[0]
        return samples

    async def spread(self, size: int, count: int, receivers: int) -> tuple[Samples, Sequence[Samples]]:
        began, *had = await self._group.execute_on(*range(receivers + 1)).spread(size, count, receivers)
        return began, had

    async def relay(
        self, count: int, size: int, pairs: int, in_flight: int, keys: int, way: str
    ) -> tuple[Samples, Samples]:
        producers = self._group.execute_on(*range(pairs))
        consumers = self._group.execute_on(*range(pairs, 2 * pairs))
        channel = self._channel
        if way in ("experience", "durable"):
            count = -(-count // (GROUP * GROUPS)) * GROUP * GROUPS  # fills all groups, even in a short warm-up
            with tempfile.TemporaryDirectory() as folder:
                file = f"{folder}/samples.db" if way == "durable" else None
                experience = await rlinf_async.Experience.create("samples", GROUP, durable=file, cluster=self._cluster)
                producing = producers.contribute(experience, count, size, in_flight)
                consuming = consumers.take_batches(experience, count)
                found = await producing, await consuming
                await experience.aclose(discard=True)
                return found
        if way in ("async", "loop"):
            producing = producers.produce_async(channel, count, size, in_flight, keys)
            if way == "loop":
                consuming = consumers.loop_over(channel, count)
            else:
                consuming = consumers.consume_async(channel, count, in_flight, keys)
        else:
            producing = producers.produce(channel, count, size, in_flight, keys)
            consuming = consumers.consume(channel, count, in_flight, keys)
        return await producing, await consuming

    async def late(self, peers: int, pending: int, rounds: int, filling: bool) -> Samples:
        """Return the lateness of worker 0's loop while this many receives and gets from this many peers are pending."""
        fill = self._group.execute_on(*range(1, peers + 1)).fill(self._channel, peers, pending, rounds)
        found = await self._group.execute_on(0).wait_for(self._channel, peers, pending, rounds, filling)
        await fill
        samples: Samples = found[0]
        return samples


class OurExchanges(exchanges.Exchanges):
    """Measurements of all frameworks, and one of our own."""

    def __init__(self, exchange: Ours) -> None:
        super().__init__(exchange)
        self._ours = exchange

    async def late(self, peers: int, pending: int, rounds: int, filling: bool) -> Samples:
        """Return the 99th percentile of the lateness of a loop's timers, in seconds."""
        return [works.p99(await self._ours.late(peers, pending, rounds, filling))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-nodes", type=int, default=1)
    parser.add_argument("--local-nodes", type=int)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    options = parser.parse_args()
    serving = works.serve(OurExchanges(Ours(options.num_nodes, options.local_nodes, options.gpu)))
    if options.loop == "asyncio":
        asyncio.run(serving)
    else:
        import uvloop

        uvloop.run(serving)


if __name__ == "__main__":
    main()
