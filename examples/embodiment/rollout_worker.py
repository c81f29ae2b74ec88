"""Worker group ``rollout``: policy inference, answers the simulators' observations with actions."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from common.checkpoint import load_policy
from common.devices import pick_device
from omegaconf import DictConfig
from pipeline import Layout, Queues
from policy import GaussianPolicy
from rollouts import Actions, Floats, TaskShape, share_actions
from seeding import generator_for

from rlinf_async import Worker, follow


class MultiStepRolloutWorker(Worker):
    """Answers observations with actions, step after step, with the weights that it was last given."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__()
        self._cfg = cfg

    def init_worker(self, shape: TaskShape, layout: Layout) -> None:
        """Builds the policy, from ``rollout.model.model_path`` where that is given."""
        torch.set_num_threads(1)
        model = self._cfg.actor.model
        self._shape = shape
        self._layout = layout
        self._device = pick_device(self._cfg.rollout.device)
        self._policy = GaussianPolicy(
            shape.observation_size, shape.action_size, model.hidden_sizes, model.initial_log_std
        ).to(self._device)
        path = self._cfg.rollout.model.model_path
        if path is not None:
            self._policy.load_state_dict(load_policy(path))
        # Where nothing is trained, nobody sends weights, and the policy is the one that was loaded.
        self._weights = None if self._cfg.runner.only_eval else follow(self._policy, of="actor")

    async def begin_step(self, step: int) -> None:
        """What is random from now on belongs to training step ``step``; the actor has sent weights before."""
        assert self._weights is not None
        await self._weights.wait_version(1)
        # A generator for each stage: which of them is answered first differs from run to run.
        self._generators = [
            generator_for(self._cfg.runner.seed, f"rollout of stage {stage}", self._rank, step, self._device)
            for stage in range(self._layout.stages)
        ]

    async def generate(self, queues: Queues) -> dict[int, int]:
        """Samples an action for each observation, until the env workers ask for no more.

        Returns:
            Actions by the version of the weights that decided on them.
        """
        self._decided: Counter[int] = Counter()
        await self._answer("generate", queues, self._generators)
        return dict(self._decided)

    async def generate_most_likely(self, queues: Queues) -> None:
        """The same with the most likely action: for evaluation."""
        await self._answer("generate_most_likely", queues, [None] * self._layout.stages)

    async def _answer(self, timer: str, queues: Queues, generators: Sequence[torch.Generator | None]) -> None:
        """Answers all stages at once, each with noise from a generator of its own, or without noise."""
        async with asyncio.TaskGroup() as stages:
            for stage, generator in enumerate(generators):
                stages.create_task(self._answer_stage(timer, stage, queues, generator))

    async def _answer_stage(self, timer: str, stage: int, queues: Queues, generator: torch.Generator | None) -> None:
        key = (stage, self._rank)
        arriving = queues.observations.get_batch(len(self._layout.env_peers(self._rank)), key=key)
        while True:
            views = [view for view in await arriving if view.observations is not None]
            if not views:
                return
            views.sort(key=lambda view: view.env_rank)
            async with contextlib.nullcontext(0) if self._weights is None else self._weights.reading() as version:
                with self.worker_timer(timer):
                    decided = self._act(np.concatenate([view.observations for view in views]), generator)
            if generator is not None:
                self._decided[version] += sum(len(view.observations) for view in views)
            shares = share_actions(decided, [len(view.observations) for view in views])
            puts = [
                queues.actions.put(share, key=(stage, view.env_rank, self._rank))
                for view, share in zip(views, shares, strict=True)
            ]
            # Asked for now: what comes while another stage's actions are computed is here after that.
            arriving = queues.observations.get_batch(len(views), key=key)
            for put in puts:
                await put

    @torch.inference_mode()
    def _act(self, observations: Floats, generator: torch.Generator | None) -> Actions:
        noise = None
        if generator is not None:
            size = (len(observations), self._shape.action_size)
            noise = torch.randn(size, generator=generator, device=self._device)
        actions, log_probabilities = self._policy.act(torch.from_numpy(observations).to(self._device), noise)
        return Actions(actions.cpu().numpy(), log_probabilities.cpu().numpy())
