"""rlinf_async as a contestant of the call and launch benches: plain ``asyncio.run``, groups of workers."""

from __future__ import annotations

import time

BORN = time.perf_counter()

import argparse  # noqa: E402
import asyncio  # noqa: E402
import itertools  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Awaitable, Iterable, Sequence  # noqa: E402
from typing import Any  # noqa: E402

if "--import-torch" in sys.argv:
    import torch  # noqa: F401

import works  # noqa: E402

from rlinf_async import Cluster, NodePlacementStrategy, Worker  # noqa: E402


class Bench(Worker):
    def __init__(self) -> None:
        super().__init__()

    async def ping(self, value: Any = None) -> Any:
        return value

    def ping_def(self, value: Any = None) -> Any:
        return value

    def use_torch(self) -> int:
        import torch

        return torch.ones(8).numel()

    def use_transformers(self) -> str:
        from transformers.models.llama.modeling_llama import LlamaForCausalLM

        return LlamaForCausalLM.__name__

    def pid(self) -> int:
        return os.getpid()

    def numel(self, tensor: Any) -> int:
        return tensor.numel()

    def summed(self, tensor: Any) -> float:
        return float(tensor.sum())


class Ours(works.Framework):
    """rlinf_async with ``nodes`` nodes on this machine; the workers live on the last of them."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._launched = 0

    async def start(self, workers: int) -> None:
        self._cluster = await Cluster(num_nodes=self._nodes, local_nodes=self._nodes if self._nodes > 1 else None)
        self.first = await self.launch(workers)
        self._one = self.first[0]
        self._next = itertools.cycle([self.first[rank] for rank in range(workers)])

    async def launch(self, workers: int, **options: Any) -> Any:
        self._launched += 1
        placement = NodePlacementStrategy([self._nodes - 1] * workers)
        return Bench.create_group().launch(self._cluster, placement, name=f"bench-{self._launched}", **options)

    async def end(self, group: Any) -> None:
        await group.close()

    async def stop(self) -> None:
        await self._cluster.aclose()

    def any(self, method: str) -> Awaitable[Any]:
        return getattr(self.first.any(), method)()

    def one_in_turn(self, method: str) -> Awaitable[Any]:
        return getattr(next(self._next), method)()

    def one(self, method: str) -> Awaitable[Any]:
        return getattr(self._one, method)()

    def all(self, group: Any, method: str, *args: Any) -> Awaitable[Sequence[Any]]:
        return getattr(group, method)(*args)

    async def together(self, calls: Iterable[Awaitable[Any]]) -> None:
        for handle in list(calls):
            await handle


class OurWorks(works.Works):
    """Measurements that only this framework supports; ``ours`` is the framework."""

    def __init__(self, ours: Ours, born: float) -> None:
        super().__init__(ours, born)
        self._ours = ours

    async def importing(self, workers: int, modules: list[str]) -> dict[str, works.Samples]:
        """Measure workers that use transformers, launched with ``preload=modules`` and without, and their own MiB."""
        found: dict[str, works.Samples] = {}
        for name in ("first", "again"):
            began = time.perf_counter()
            group = await self._ours.launch(workers, preload=modules)
            await self._ours.all(group, "use_transformers")
            found[name] = [time.perf_counter() - began]
            found["private"] = [works.private(pid) for pid in await self._ours.all(group, "pid")]
            await self._ours.end(group)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--import-torch", action="store_true")
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    options = parser.parse_args()
    serving = works.serve(OurWorks(Ours(options.nodes), BORN))
    if options.loop == "asyncio":
        asyncio.run(serving)
    else:
        import uvloop

        uvloop.run(serving)


if __name__ == "__main__":
    main()
