"""Ray as a contestant of the call and launch benches: actors, awaited from asyncio."""

from __future__ import annotations

import time

BORN = time.perf_counter()

import asyncio  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Awaitable, Sequence  # noqa: E402
from typing import Any  # noqa: E402

if "--import-torch" in sys.argv:
    import torch  # noqa: F401

import ray  # noqa: E402
import works  # noqa: E402


class Plain:
    """Actor without coroutine methods, whose calls take a shorter path in Ray."""

    def ping_def(self, value: Any = None) -> Any:
        return value

    def use_torch(self) -> int:
        import torch

        return torch.ones(8).numel()

    def pid(self) -> int:
        return os.getpid()

    def numel(self, tensor: Any) -> int:
        return tensor.numel()

    def summed(self, tensor: Any) -> float:
        return float(tensor.sum())


class Asynchronous(Plain):
    async def ping(self, value: Any = None) -> Any:
        return value


class Ray(works.Framework):
    async def start(self, workers: int) -> None:
        cpus = 16 if "--ready-workers" in sys.argv else None  # Ray keeps one idle process per CPU
        ray.init(
            num_cpus=cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=3 << 30,
        )
        self.first = await self.launch(workers)
        self._asynchronous: list[Any] = []

    async def launch(self, workers: int) -> Any:
        remote = ray.remote(num_cpus=0)(Plain)
        return [remote.remote() for _ in range(workers)]

    async def end(self, group: Any) -> None:
        for actor in group:
            ray.kill(actor)

    async def stop(self) -> None:
        ray.shutdown()

    def _actors(self, group: Any, method: str) -> Any:
        if method != "ping":
            return group
        if not self._asynchronous:
            remote = ray.remote(num_cpus=0)(Asynchronous)
            self._asynchronous = [remote.remote() for _ in group]
        return self._asynchronous

    def one(self, method: str) -> Awaitable[Any]:
        return getattr(self._actors(self.first, method)[0], method).remote()

    def all(self, group: Any, method: str, *args: Any) -> Awaitable[Sequence[Any]]:
        shared = [ray.put(value) for value in args]
        actors = self._actors(group, method)
        return asyncio.gather(*[getattr(actor, method).remote(*shared) for actor in actors])


if __name__ == "__main__":
    works.run(Ray(), BORN)
