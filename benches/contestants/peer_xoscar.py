"""xoscar as a contestant of the call and launch benches: a pool of processes, an actor on each, numpy arrays."""

from __future__ import annotations

import time

BORN = time.perf_counter()

import asyncio  # noqa: E402
import os  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402
from collections.abc import Awaitable, Sequence  # noqa: E402
from typing import Any  # noqa: E402

if "--import-torch" in sys.argv:
    import torch  # noqa: F401

import works  # noqa: E402
import xoscar  # noqa: E402


class Bench(xoscar.Actor):
    async def ping(self, value: Any = None) -> Any:
        return value

    def ping_def(self, value: Any = None) -> Any:
        return value

    def use_torch(self) -> int:
        import torch

        return torch.ones(8).numel()

    def pid(self) -> int:
        return os.getpid()

    def numel(self, array: Any) -> int:
        return array.size

    def summed(self, array: Any) -> float:
        return float(array.sum())


class Xoscar(works.Framework):
    async def start(self, workers: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._pool = await xoscar.create_actor_pool(address, n_process=workers)
        places = [xoscar.allocate_strategy.ProcessIndex(index) for index in range(1, workers + 1)]
        self.first = await asyncio.gather(
            *[xoscar.create_actor(Bench, address=address, allocate_strategy=place) for place in places]
        )

    async def launch(self, workers: int) -> Any:
        addresses = await asyncio.gather(*[self._pool.append_sub_pool() for _ in range(workers)])
        return await asyncio.gather(*[xoscar.create_actor(Bench, address=address) for address in addresses])

    async def end(self, group: Any) -> None:
        for actor in group:
            await self._pool.remove_sub_pool(actor.address)

    async def stop(self) -> None:
        await self._pool.stop()

    def one(self, method: str) -> Awaitable[Any]:
        return getattr(self.first[0], method)()

    def all(self, group: Any, method: str, *args: Any) -> Awaitable[Sequence[Any]]:
        return asyncio.gather(*[getattr(actor, method)(*args) for actor in group])

    def tensor(self, mebibytes: int) -> Any:
        import numpy as np

        return np.ones(mebibytes << 18, dtype=np.float32)


if __name__ == "__main__":
    works.run(Xoscar(), BORN)
