"""Monarch as a contestant of the call and launch benches: a mesh of processes on this host, an actor on each."""

from __future__ import annotations

import time

BORN = time.perf_counter()

import functools  # noqa: E402
import itertools  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Awaitable, Iterable, Sequence  # noqa: E402
from typing import Any  # noqa: E402

if "--import-torch" in sys.argv:
    import torch  # noqa: F401

import works  # noqa: E402
from monarch.actor import Actor, endpoint, this_host  # noqa: E402


class Plain(Actor):
    """Actor with coroutine endpoints; Monarch's actors cannot have both kinds."""

    @endpoint
    def ping_def(self, value: Any = None) -> Any:
        return value

    @endpoint
    def use_torch(self) -> int:
        import torch

        return torch.ones(8).numel()

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def numel(self, tensor: Any) -> int:
        return tensor.numel()

    @endpoint
    def summed(self, tensor: Any) -> float:
        return float(tensor.sum())


class Asynchronous(Actor):
    @endpoint
    async def ping(self, value: Any = None) -> Any:
        return value


class Monarch(works.Framework):
    """Monarch; a group is a mesh of processes and its actors, by kind."""

    def __init__(self) -> None:
        self._spawned = itertools.count()

    async def start(self, workers: int) -> None:
        self.first = await self.launch(workers)

    async def launch(self, workers: int) -> Any:
        processes = this_host().spawn_procs(per_host={"gpus": workers})
        return processes, {Plain: self._spawn(processes, Plain)}

    def _spawn(self, processes: Any, kind: type[Actor]) -> Any:
        return processes.spawn(f"{kind.__name__.lower()}_{next(self._spawned)}", kind)

    async def end(self, group: Any) -> None:
        await group[0].stop()

    async def stop(self) -> None:
        await self.end(self.first)

    def _actors(self, group: Any, method: str) -> Any:
        processes, actors = group
        kind = Asynchronous if method == "ping" else Plain
        if kind not in actors:
            actors[kind] = self._spawn(processes, kind)
        return actors[kind]

    def one(self, method: str) -> Awaitable[Any]:
        return getattr(self._one(method), method).call_one()

    @functools.cache  # noqa: B019  # a view made once, as for the others
    def _one(self, method: str) -> Any:
        return self._actors(self.first, method).slice(gpus=0)

    def all(self, group: Any, method: str, *args: Any) -> Awaitable[Sequence[Any]]:
        replies = getattr(self._actors(group, method), method).call(*args)
        return _values(replies) if method == "pid" else replies

    async def together(self, calls: Iterable[Awaitable[Any]]) -> None:
        for call in list(calls):
            await call


async def _values(replies: Awaitable[Any]) -> list[Any]:
    return list((await replies).values())


if __name__ == "__main__":
    works.run(Monarch(), BORN)
