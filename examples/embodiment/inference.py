"""Policy inference: actions for observations, with the newest weights that the actor has published."""

from __future__ import annotations

import contextlib

import numpy as np
import torch
from common.checkpoint import load_policy
from common.devices import pick_device
from configuration import Configuration
from policy import make_policy
from rollouts import Actions, Floats, TaskShape
from seeding import generator_for

from rlinf_async import follow


class PolicyInference:
    """A policy that follows the actor's weights, in an env worker or in a rollout worker.

    ::

        inference = PolicyInference(cfg, shape, rank)
        await inference.wait_version(version)                # the actor has published it
        noise = inference.generator("rollout", step)
        actions = await inference.act(observations, noise)
    """

    def __init__(self, cfg: Configuration, shape: TaskShape, rank: int) -> None:
        torch.set_num_threads(1)
        self._seed, self._rank = cfg.runner.seed, rank
        self._device = pick_device(cfg.rollout.device)
        self._policy = make_policy(cfg.actor.model, shape).to(self._device)
        path = cfg.rollout.model.model_path
        if path is not None:
            self._policy.load_state_dict(load_policy(path, cfg, ("actor.model.hidden_sizes",)))
        # An evaluation publishes no weights and uses the loaded policy.
        self._weights = None if cfg.runner.only_eval else follow(self._policy, of="actor")

    async def follow_again(self) -> None:
        """Follow an actor that was restarted."""
        if self._weights is not None:
            await self._weights.close()
            self._weights = follow(self._policy, of="actor")

    async def wait_version(self, version: int) -> None:
        """Wait for these weights, or later ones."""
        if self._weights is not None:
            await self._weights.wait_version(version)

    def generator(self, purpose: str, step: int) -> torch.Generator:
        """Return the noise generator of this rank for training step ``step``."""
        return generator_for(self._seed, purpose, self._rank, step, self._device)

    async def act(self, observations: Floats, noise: torch.Generator | None) -> Actions:
        """Return actions for ``[batch, observation]``.

        Args:
            noise: generator for samples; None for the most likely actions.
        """
        reading = contextlib.nullcontext(0) if self._weights is None else self._weights.reading()
        async with reading as version:
            return self._act(observations, noise, version)

    @torch.inference_mode()
    def _act(self, observations: Floats, generator: torch.Generator | None, version: int) -> Actions:
        noise = None if generator is None else self._policy.noise(len(observations), generator)
        actions, log_probabilities = self._policy.act(torch.from_numpy(observations).to(self._device), noise)
        versions = np.full(len(observations), version)
        return Actions(actions.cpu().numpy(), log_probabilities.cpu().numpy(), versions)
