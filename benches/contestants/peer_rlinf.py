"""RLinf as a contestant of the call and launch benches: blocking handles, as its documentation uses them."""

from __future__ import annotations

import time

BORN = time.perf_counter()

import os  # noqa: E402
from collections.abc import Awaitable, Sequence  # noqa: E402
from typing import Any  # noqa: E402

import works  # noqa: E402
from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker  # noqa: E402


class Bench(Worker):
    def __init__(self) -> None:
        super().__init__()

    def ping(self, value: Any = None) -> Any:
        return value

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


class RLinf(works.Framework):
    _launched = 0

    async def start(self, workers: int) -> None:
        self._cluster = Cluster(num_nodes=1)
        self.first = await self.launch(workers)

    async def launch(self, workers: int) -> Any:
        self._launched += 1
        placement = NodePlacementStrategy([0] * workers)
        return Bench.create_group().launch(self._cluster, placement, name=f"bench-{self._launched}")

    async def end(self, group: Any) -> None:
        group._close()

    async def one(self, method: str) -> Any:
        return getattr(self.first.execute_on(0), method)().wait()

    async def _all(self, group: Any, method: str, *args: Any) -> Sequence[Any]:
        replies: Sequence[Any] = getattr(group, method)(*args).wait()
        return replies

    def all(self, group: Any, method: str, *args: Any) -> Awaitable[Sequence[Any]]:
        return self._all(group, method, *args)


if __name__ == "__main__":
    works.run(RLinf(), BORN)
