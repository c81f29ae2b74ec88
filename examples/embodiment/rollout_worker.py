"""Worker group ``rollout``: policy inference for env workers that do not do it themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import torch
from configuration import Configuration
from inference import PolicyInference
from pipeline import Layout, Queues
from rollouts import TaskShape, share_actions

from rlinf_async import Worker, idempotent


class MultiStepRolloutWorker(Worker):
    """Answers observations with actions, step after step, with the newest weights."""

    def __init__(self, cfg: Configuration) -> None:
        super().__init__()
        self._cfg = cfg
        self._turn = asyncio.Lock()
        self._is_ready = False

    @idempotent
    def init_worker(self, shape: TaskShape, layout: Layout) -> None:
        """Build the policy, from ``rollout.model.model_path`` if that is set."""
        self._layout = layout
        self._inference = PolicyInference(self._cfg, shape, self._rank)
        self._is_ready = True

    async def is_ready(self) -> bool:
        """True once it is initialised; False again after a restart of its process."""
        return self._is_ready

    async def follow_again(self) -> None:
        """Follow an actor that was restarted."""
        await self._inference.follow_again()

    async def generate(self, queues: Queues, step: int, version: int) -> None:
        """Sample an action for each observation until the env workers end the rollout.

        Args:
            queues: channels of the run.
            step: training step of the rollout, which seeds random actions.
            version: oldest version of the weights to act with.
        """
        # One generator per stage, because the order in which stages are answered differs from run to run.
        noise = [self._inference.generator(f"stage {stage}", step) for stage in range(self._layout.stages)]
        await self._answer("generate", queues, noise, version)

    async def generate_most_likely(self, queues: Queues, version: int) -> None:
        """Answer with the most likely action, for evaluation."""
        await self._answer("generate_most_likely", queues, [None] * self._layout.stages, version)

    async def _answer(self, timer: str, queues: Queues, noise: Sequence[torch.Generator | None], version: int) -> None:
        """Answer all stages concurrently, each with noise from its own generator, or without noise."""
        async with self._turn:
            await self._inference.wait_version(version)
            async with asyncio.TaskGroup() as stages:
                for stage, generator in enumerate(noise):
                    stages.create_task(self._answer_stage(timer, stage, queues, generator))

    async def _answer_stage(self, timer: str, stage: int, queues: Queues, noise: torch.Generator | None) -> None:
        key = (stage, self._rank)
        arriving = queues.observations.get_batch(len(self._layout.env_peers(self._rank)), key=key)
        while True:
            views = [view for view in await arriving if view.observations is not None]
            if not views:
                return
            views.sort(key=lambda view: view.env_rank)
            with self.worker_timer(timer):
                actions = await self._inference.act(np.concatenate([view.observations for view in views]), noise)
            sizes = [len(view.observations) for view in views]
            puts = [
                queues.actions.put(share, key=(stage, view.env_rank, self._rank))
                for view, share in zip(views, share_actions(actions, sizes), strict=True)
            ]
            # Requested now, so that it arrives while another stage's actions are computed.
            arriving = queues.observations.get_batch(len(views), key=key)
            for put in puts:
                await put
