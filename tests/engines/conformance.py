"""Engines that the claims of ``test_conformance`` are tried on: two of one kind, which follow a trainer."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from rlinf_async import Cluster, NodePlacementStrategy
from rlinf_async.engines import EngineGroup
from tests.engines.engine_trainers import NoiseTrainer

_VLLM: Final = {
    "enforce_eager": True,
    "max_model_len": 512,
    "dtype": "float32",
    "max_num_seqs": 64,
    "kv_cache_memory_bytes": 64 << 20,
}
OPTIONS: Final[dict[str, dict[str, Any]]] = {"transformers": {}, "vllm": _VLLM, "http": _VLLM}

_WITH_VLLM: Final = [
    pytest.mark.engines,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vLLM is not installed: make engines runs these in an environment that has it",
    ),
]
KINDS: Final = ["transformers", *(pytest.param(kind, marks=_WITH_VLLM) for kind in ("vllm", "http"))]

PROMPT: Final = [5, 6, 7]


class Followed:
    """A trainer, and the engines that follow it."""

    def __init__(self, cluster: Cluster, kind: str, model: str, trainer: Any, llm: EngineGroup) -> None:
        self.cluster, self.kind, self.model, self.trainer, self.llm = cluster, kind, model, trainer, llm

    async def update(self, scale: float = 0.02) -> int:
        """Change the weights. Return the version, once every engine samples with it."""
        [version] = await self.trainer.update(scale)
        await self.settled(version)
        return int(version)

    async def settled(self, version: int) -> None:
        """Wait until every engine samples with a version."""
        async with asyncio.timeout(120):
            await self.trainer.delivered()
            while min(await self.llm.versions()) < version:
                await asyncio.sleep(0.02)

    async def greedy(self, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
        """Return tokens and log probabilities of the trainer's model, by transformers' forward passes."""
        [found] = await self.trainer.greedy(prompt, count)
        return found[0], found[1]

    def new_group(self, **options: Any) -> EngineGroup:
        return EngineGroup(self.kind, **{"model": self.model, **OPTIONS[self.kind], **options})


@contextlib.asynccontextmanager
async def followed(kind: str, model: str) -> AsyncIterator[Followed]:
    """Launch a trainer and two engines, which sample with its version."""
    async with Cluster(local_nodes=1, log_to_driver=False) as cluster:
        trainer = NoiseTrainer.create_group(model, verify="sha256").launch(
            cluster, NodePlacementStrategy([0]), name="trainer", seed=0
        )
        llm = EngineGroup(kind, model=model, **OPTIONS[kind]).launch(
            cluster,
            NodePlacementStrategy([0, 0]),
            name="llm",
            follow="trainer",
            verify="sha256",
            restart="rank",
            max_restarts=100,
        )
        await llm
        found = Followed(cluster, kind, model, trainer, llm)
        await found.update()
        yield found
