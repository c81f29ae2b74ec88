"""Ray as a contestant of the data exchange benches: actors call each other, or use ``ray.util.queue``."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import exchanges
import ray
from ray.util.queue import Queue
from works import Samples


class Plain:
    """Actor without coroutine methods, whose calls take a shorter path in Ray."""

    def swap(self, other: Any, size: int, count: int, read: bool) -> Samples:
        import torch

        mine = torch.ones(size // 4)
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            got = ray.get(other.answer.remote(mine, read))
            if read:
                got.sum().item()
            samples.append(time.perf_counter() - began)
            del got
        return samples

    def answer(self, tensor: Any, read: bool) -> Any:
        import torch

        if read:
            tensor.sum().item()
        if not hasattr(self, "mine") or len(self.mine) != len(tensor):
            self.mine = torch.ones(len(tensor))
        return self.mine

    def spread(self, others: Sequence[Any], size: int, count: int) -> tuple[Samples, list[Samples]]:
        import torch

        tensor = torch.ones(size // 4)
        began, had = [], []
        for _ in range(count):
            began.append(time.perf_counter())
            shared = ray.put(tensor)
            had.append(ray.get([other.arrived.remote(shared) for other in others]))
            del shared
        return began, [list(each) for each in zip(*had, strict=True)]

    def arrived(self, tensor: Any) -> float:
        return time.perf_counter()


class Asynchronous:
    async def produce(self, queue: Queue, count: int, size: int, in_flight: int) -> float:
        item: Any = 1
        if size:
            import torch

            item = torch.ones(size // 4)
        began = time.perf_counter()
        await in_turn(count, in_flight, lambda: queue.put_async(item))
        return began

    async def consume(self, queue: Queue, count: int, in_flight: int) -> float:
        await in_turn(count, in_flight, queue.get_async)
        return time.perf_counter()


async def in_turn(count: int, in_flight: int, start: Any) -> None:
    if in_flight == 1:
        for _ in range(count):
            await start()
        return
    tasks: deque[asyncio.Task[Any]] = deque()
    for _ in range(count):
        if len(tasks) == in_flight:
            await tasks.popleft()
        tasks.append(asyncio.ensure_future(start()))
    for task in tasks:
        await task


class Ray(exchanges.Exchange):
    async def start(self, workers: int) -> None:
        # More CPUs than the machine has, because Ray reserves one for the actor of its queue.
        ray.init(
            num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=3 << 30
        )
        self._workers = workers
        self._plain: list[Any] = []
        self._asynchronous: list[Any] = []
        self._queue: Queue | None = None

    async def stop(self) -> None:
        ray.shutdown()

    def _launch(self, actors: list[Any], kind: type) -> list[Any]:
        """Return the actors of this kind, created on first use."""
        if not actors:
            actors += [ray.remote(num_cpus=0)(kind).remote() for _ in range(self._workers)]
        return actors

    async def swap(self, size: int, count: int, way: str, read: bool) -> Samples:
        one, other, *_ = self._launch(self._plain, Plain)
        samples: Samples = await one.swap.remote(other, size, count, read)
        return samples

    async def spread(self, size: int, count: int, receivers: int) -> tuple[Samples, Sequence[Samples]]:
        source, *others = self._launch(self._plain, Plain)
        began, had = await source.spread.remote(others[:receivers], size, count)
        return began, had

    async def relay(
        self, count: int, size: int, pairs: int, in_flight: int, keys: int, way: str
    ) -> tuple[Samples, Samples]:
        if self._queue is None:
            self._queue = Queue()
        workers = self._launch(self._asynchronous, Asynchronous)
        producing = [each.produce.remote(self._queue, count, size, in_flight) for each in workers[:pairs]]
        consuming = [each.consume.remote(self._queue, count, in_flight) for each in workers[pairs : 2 * pairs]]
        return await asyncio.gather(*producing), await asyncio.gather(*consuming)


if __name__ == "__main__":
    exchanges.run(Ray())
