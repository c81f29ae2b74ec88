"""rlinf_async as a contestant of the weights bench: workers publish weights and subscribe to them."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from typing import Any

import weighing
import works
from works import Samples

from rlinf_async import (
    Cluster,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    PlacementStrategy,
    Worker,
    WorkerGroup,
    follow,
    publish,
)
from rlinf_async._messaging.state.chain import CHAIN_FROM_BYTES
from rlinf_async.weights import Publisher, Subscriber
from rlinf_async.weights.links.worker_link import WorkerLink

COMPUTES_S = 0.02
"""Seconds of Python computation in a trainer after it has sent a version."""


class Trainer(Worker):
    async def open(
        self, line: str, shape: str, size: int, receivers: int, apply: str, device: str, chain_from: int
    ) -> None:
        self._model = weighing.model(shape, size, device)
        self._publisher = Publisher(self._model, apply=apply, chain_from=chain_from)
        for rank in range(receivers):
            self._publisher.add(rank, WorkerLink("rollout", rank, line))
        await self._publisher.connect()

    async def sync(self, version: int) -> tuple[float, float, float]:
        weighing.fill(self._model, version)
        began = time.perf_counter()
        handle = await self._publisher.publish()
        staged = time.perf_counter() - began
        report = await handle
        total = time.perf_counter() - began
        return staged, total, max(ack.t_pause for ack in report.per_worker.values())

    async def send_pattern(self) -> list[int]:
        """Send the pattern, and change the model as soon as that is allowed."""
        sent = weighing.fill_with_pattern(self._model)
        handle = await self._publisher.publish()
        weighing.fill(self._model, -1)
        await handle
        return sent

    async def control(self, receivers: int, count: int) -> Samples:
        """Return the seconds for a few bytes to each receiver and back."""
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            for rank in range(receivers):
                self.send(1, "rollout", rank, async_op=True)
            for rank in range(receivers):
                await self.recv("rollout", rank, async_op=True)
            samples.append(time.perf_counter() - began)
        return samples

    async def shut(self) -> None:
        await self._publisher.close()
        del self._publisher, self._model

    async def open_words(self, shape: str, size: int, way: str, verify: str) -> None:
        self._model = weighing.model(shape, size)
        if way == "load":
            self._rollout = await WorkerGroup.from_group_name(Rollout, "rollout", cluster=await Cluster())
        else:
            self._words = publish(self._model, to="rollout", apply=way.removeprefix("publish_"), verify=verify)

    async def sync_by_words(self, version: int, way: str) -> float:
        weighing.fill(self._model, version)
        began = time.perf_counter()
        if way == "load":
            await self._rollout.load(self._model.state_dict())
        else:
            await self._words.send()
            await self._words.delivered()
        return time.perf_counter() - began

    def send_and_compute(self, version: int) -> float:
        """Send a version, and compute in Python afterwards; return when the computation has begun."""
        weighing.fill(self._model, version)
        began = time.perf_counter()
        self._words.send()
        count = 0
        while time.perf_counter() - began < COMPUTES_S:
            count += 1
        return began

    async def shut_words(self, way: str) -> None:
        if way != "load":
            await self._words.close()


class Rollout(Worker):
    async def open(self, line: str, shape: str, size: int, apply: str, device: str) -> None:
        self._model = weighing.model(shape, size, device)
        self._subscriber = Subscriber(WorkerLink("trainer", 0, line), self._model, apply=apply)
        await self._subscriber.connect()
        self._subscriber.serve()

    async def check(self, version: int) -> None:
        async with self._subscriber.reading() as reads:
            if reads != version:
                raise ValueError(f"version {reads} is read, and {version} has been acknowledged")
            weighing.check(self._model, version)

    async def sums(self) -> list[int]:
        async with self._subscriber.reading():
            return weighing.sums(self._model)

    async def echo(self, count: int) -> None:
        for _ in range(count):
            await self.recv("trainer", 0, async_op=True)
            self.send(1, "trainer", 0, async_op=True)

    async def shut(self) -> None:
        await self._subscriber.close()
        del self._subscriber, self._model

    async def open_words(self, shape: str, size: int, way: str, verify: str) -> None:
        self._model = weighing.model(shape, size)
        if way != "load":
            self._words = follow(self._model, of="trainer", apply=way.removeprefix("publish_"), verify=verify)

    async def load(self, state: Any) -> None:
        self._model.load_state_dict(state)

    async def has_words(self, version: int) -> float:
        """Wait for the version."""
        await self._words.wait_version(version)
        return time.perf_counter()

    async def check_words(self, version: int) -> None:
        weighing.check(self._model, version)

    async def shut_words(self, way: str) -> None:
        if way != "load":
            await self._words.close()


class Ours(weighing.Weights):
    """rlinf_async with the trainer on the first node, and the receivers on the others in turn.

    Args:
        num_nodes: nodes of the existing run, under ``rlinf-launch``.
        local_nodes: number of nodes on this machine.
        gpu: True if all workers share the first GPU.

    Attributes:
        chain_from: size in bytes from which receivers forward weights to each other.
        devices: devices of the trainer's model and of the receivers' models.
    """

    def __init__(self, num_nodes: int, local_nodes: int | None, gpu: bool) -> None:
        self._num_nodes = num_nodes
        self._local_nodes = local_nodes
        self._gpu = gpu
        self._lines = 0
        self.chain_from = CHAIN_FROM_BYTES
        self.devices = ("cpu", "cpu")

    async def start(self, receivers: int) -> None:
        self._cluster = await Cluster(num_nodes=self._num_nodes, local_nodes=self._local_nodes)
        nodes = list(range(1, self._num_nodes)) or [0]
        first: PlacementStrategy = NodePlacementStrategy([0])
        others: PlacementStrategy = NodePlacementStrategy([nodes[rank % len(nodes)] for rank in range(receivers)])
        if self._gpu:
            first = others = PackedPlacementStrategy(0, 0)
        self._trainer = Trainer.create_group().launch(self._cluster, first, name="trainer")
        self._rollout = Rollout.create_group().launch(self._cluster, others, name="rollout")
        await self._trainer
        await self._rollout

    async def stop(self) -> None:
        await self._cluster.aclose()

    async def open(self, shape: str, size: int, receivers: int, apply: str) -> None:
        self._lines += 1
        line = f"bench {self._lines}"
        self._receiving: Any = self._rollout.execute_on(*range(receivers))
        trainers, others = self.devices
        opening = self._receiving.open(line, shape, size, apply, others)
        await self._trainer.open(line, shape, size, receivers, apply, trainers, self.chain_from)
        await opening

    async def sync(self, version: int) -> Sequence[float]:
        (taken,) = await self._trainer.sync(version)
        return tuple(taken)

    async def check(self, version: int) -> None:
        await self._receiving.check(version)

    async def compare(self) -> tuple[list[int], Sequence[list[int]]]:
        (sent,) = await self._trainer.send_pattern()
        return sent, await self._receiving.sums()

    async def shut(self) -> None:
        await self._receiving.shut()
        await self._trainer.shut()

    async def sync_by_words(
        self, shape: str, size: int, way: str, count: int, verify: str = "off", *, computes: bool = False
    ) -> Samples:
        """Return the seconds until the receiver has a version, after three warm-up versions."""
        await self._rollout.open_words(shape, size, way, verify)
        await self._trainer.open_words(shape, size, way, verify)
        taken: list[float] = []
        for version in range(1, weighing.WARM_UP + count + 1):
            if computes:
                waiting = self._rollout.has_words(version)
                began = await self._trainer.send_and_compute(version)
                taken += [(await waiting)[0] - began[0]]
            else:
                taken += await self._trainer.sync_by_words(version, way)
            await self._rollout.check_words(version)
        await self._trainer.shut_words(way)
        await self._rollout.shut_words(way)
        return taken[weighing.WARM_UP :]

    async def control(self, receivers: int, count: int) -> Samples:
        echoing = self._rollout.execute_on(*range(receivers)).echo(count)
        (samples,) = await self._trainer.control(receivers, count)
        await echoing
        return list(samples)


ON_GPU = {
    "d2h": ("cuda", "cpu", "map", "staged"),
    "h2d": ("cpu", "cuda", "copy", "pause"),
    "copy": ("cuda", "cuda", "copy", "total"),
    "map": ("cuda", "cuda", "map", "total"),
}
"""By path: devices of the trainer's and the receiver's model, the way of applying, and the measured quantity."""


class OurWeighing(weighing.Weighing):
    """Measurements of all frameworks, and some of our own."""

    def __init__(self, weights: Ours) -> None:
        super().__init__(weights)
        self._ours = weights

    async def control(self, receivers: int, count: int) -> Samples:
        """Return the seconds for a few bytes from the trainer to each receiver and back."""
        return await self._ours.control(receivers, count)

    async def sync_by_words(self, **sync: Any) -> Samples:
        return await self._ours.sync_by_words(**sync)

    async def direct(self, **sync: Any) -> Samples:
        """Return the seconds until the last receiver has a version, without forwarding between receivers."""
        self._ours.chain_from, before = sync["size"] + 1, self._ours.chain_from
        try:
            return (await self.sync(**sync))["total"]
        finally:
            self._ours.chain_from = before

    async def sync_on_gpu(self, way: str, size: int, count: int) -> Samples:
        """Return the seconds of the measured quantity, to one receiver."""
        trainers, receivers, apply, what = ON_GPU[way]
        self._ours.devices = trainers, receivers
        found = await self.sync("llm", size, 1, apply, count)
        return found[what]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    parser.add_argument("--num-nodes", type=int, default=1)
    parser.add_argument("--local-nodes", type=int)
    parser.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    serving = works.serve(OurWeighing(Ours(options.num_nodes, options.local_nodes, options.gpu)))
    if options.loop == "asyncio":
        asyncio.run(serving)
    else:
        import uvloop

        uvloop.run(serving)


if __name__ == "__main__":
    main()
