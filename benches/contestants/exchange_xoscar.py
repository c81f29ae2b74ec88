"""xoscar as a contestant of the data exchange benches: its actors call each other, with numpy arrays (best case)."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from typing import Any

import exchanges
import xoscar
from works import Samples


class Bench(xoscar.Actor):
    async def swap(self, other: Any, size: int, count: int, read: bool) -> Samples:
        mine = ones(size)
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            got = await other.answer(mine, read)
            if read:
                got.sum()
            samples.append(time.perf_counter() - began)
        return samples

    async def answer(self, array: Any, read: bool) -> Any:
        if read:
            array.sum()
        if not hasattr(self, "_mine") or self._mine.nbytes != array.nbytes:
            self._mine = ones(array.nbytes)
        return self._mine

    async def spread(self, others: Sequence[Any], size: int, count: int) -> tuple[Samples, list[Samples]]:
        array = ones(size)
        began, had = [], []
        for _ in range(count):
            began.append(time.perf_counter())
            had.append(await asyncio.gather(*[other.arrived(array) for other in others]))
        return began, [list(each) for each in zip(*had, strict=True)]

    async def arrived(self, array: Any) -> float:
        return time.perf_counter()


def ones(size: int) -> Any:
    import numpy as np

    return np.ones(size // 4, dtype=np.float32)


class Xoscar(exchanges.Exchange):
    async def start(self, workers: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._pool = await xoscar.create_actor_pool(address, n_process=workers)
        places = [xoscar.allocate_strategy.ProcessIndex(index) for index in range(1, workers + 1)]
        self._actors = [await xoscar.create_actor(Bench, address=address, allocate_strategy=place) for place in places]

    async def stop(self) -> None:
        await self._pool.stop()

    async def swap(self, size: int, count: int, way: str, read: bool) -> Samples:
        one, other, *_ = self._actors
        samples: Samples = await one.swap(other, size, count, read)
        return samples

    async def spread(self, size: int, count: int, receivers: int) -> tuple[Samples, Sequence[Samples]]:
        source, *others = self._actors
        began, had = await source.spread(others[:receivers], size, count)
        return began, had


if __name__ == "__main__":
    exchanges.run(Xoscar())
