"""Monarch as a contestant of the data exchange benches: its actors call each other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import exchanges
from monarch.actor import Actor, endpoint, this_host
from works import Samples


class Bench(Actor):
    @endpoint
    async def swap(self, other: Any, size: int, count: int, read: bool) -> Samples:
        mine = ones(size)
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            got = await other.answer.call_one(mine, read)
            if read:
                got.sum().item()
            samples.append(time.perf_counter() - began)
        return samples

    @endpoint
    async def answer(self, tensor: Any, read: bool) -> Any:
        if read:
            tensor.sum().item()
        if not hasattr(self, "_mine") or len(self._mine) != len(tensor):
            self._mine = ones(4 * len(tensor))
        return self._mine

    @endpoint
    async def spread(self, others: Any, size: int, count: int) -> tuple[Samples, list[Samples]]:
        tensor = ones(size)
        began, had = [], []
        for _ in range(count):
            began.append(time.perf_counter())
            had.append(list((await others.arrived.call(tensor)).values()))
        return began, [list(each) for each in zip(*had, strict=True)]

    @endpoint
    async def arrived(self, tensor: Any) -> float:
        return time.perf_counter()


def ones(size: int) -> Any:
    import torch

    return torch.ones(size // 4)


class Monarch(exchanges.Exchange):
    async def start(self, workers: int) -> None:
        self._processes = this_host().spawn_procs(per_host={"gpus": workers})
        self._actors = self._processes.spawn("bench", Bench)

    async def stop(self) -> None:
        await self._processes.stop()

    async def swap(self, size: int, count: int, way: str, read: bool) -> Samples:
        one, other = self._actors.slice(gpus=0), self._actors.slice(gpus=1)
        samples: Samples = await one.swap.call_one(other, size, count, read)
        return samples

    async def spread(self, size: int, count: int, receivers: int) -> tuple[Samples, Sequence[Samples]]:
        source, others = self._actors.slice(gpus=0), self._actors.slice(gpus=slice(1, receivers + 1))
        began, had = await source.spread.call_one(others, size, count)
        return began, had


if __name__ == "__main__":
    exchanges.run(Monarch())
