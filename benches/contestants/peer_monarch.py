"""Monarch: a mesh of processes on this host and an actor on each."""

from __future__ import annotations

import time

BORN = time.perf_counter()

import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Awaitable, Iterable, Sequence  # noqa: E402
from typing import Any  # noqa: E402

if "--import-torch" in sys.argv:
    import torch  # noqa: F401

import works  # noqa: E402
from monarch.actor import Actor, endpoint, this_host  # noqa: E402


class Bench(Actor):
    @endpoint
    async def ping(self, value: Any = None) -> Any:
        return value

    @endpoint
    def ping_def(self, value: Any = None) -> Any:
        return value

    @endpoint
    async def use_torch(self) -> int:
        import torch

        return torch.ones(8).numel()

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def size(self, tensor: Any) -> int:
        return tensor.numel()

    @endpoint
    async def total(self, tensor: Any) -> float:
        return float(tensor.sum())


class Monarch(works.Framework):
    _launched = 0

    async def start(self, workers: int) -> None:
        self.first = await self.launch(workers)
        self._one = self.first[1].slice(gpus=0)

    async def launch(self, workers: int) -> Any:
        self._launched += 1
        processes = this_host().spawn_procs(per_host={"gpus": workers})
        return processes, processes.spawn(f"bench_{self._launched}", Bench)

    async def end(self, group: Any) -> None:
        await group[0].stop()

    async def stop(self) -> None:
        await self.end(self.first)

    def one(self, method: str) -> Awaitable[Any]:
        return getattr(self._one, method).call_one()

    async def _all(self, group: Any, method: str, *args: Any) -> Sequence[Any]:
        replies = await getattr(group[1], method).call(*args)
        return list(replies.values())

    def all(self, group: Any, method: str, *args: Any) -> Awaitable[Sequence[Any]]:
        if method == "ping":
            return getattr(group[1], method).call(*args)
        return self._all(group, method, *args)

    async def together(self, calls: Iterable[Awaitable[Any]]) -> None:
        for call in list(calls):
            await call


if __name__ == "__main__":
    works.run(Monarch(), BORN)
