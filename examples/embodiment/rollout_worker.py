"""The group that decides on actions."""

from __future__ import annotations

from typing import Any

import torch
from checkpoint import load_policy
from devices import pick_device
from omegaconf import DictConfig
from policy import GaussianPolicy
from rollouts import Actions, Floats, TaskShape
from seeding import generator_for

from rlinf_async import Worker


class MultiStepRolloutWorker(Worker):
    """Answers observations with actions, step after step, with the weights that it was last given."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__()
        self._cfg = cfg

    def init_worker(self, shape: TaskShape) -> None:
        """Builds the policy, from ``rollout.model.model_path`` where that is given."""
        torch.set_num_threads(1)
        model = self._cfg.actor.model
        self._shape = shape
        self._device = pick_device(self._cfg.rollout.device)
        self._policy = GaussianPolicy(
            shape.observation_size, shape.action_size, model.hidden_sizes, model.initial_log_std
        ).to(self._device)
        path = self._cfg.rollout.model.model_path
        if path is not None:
            self._policy.load_state_dict(load_policy(path))

    @Worker.timer("sync_model")
    def sync_model_from_actor(self, weights: dict[str, Any], step: int) -> None:
        """Takes the weights for training step ``step``."""
        self._policy.load_state_dict(weights)
        self._generator = generator_for(self._cfg.runner.seed, "rollout", self._rank, step, self._device)

    @Worker.timer("generate")
    @torch.inference_mode()
    def generate(self, observations: Floats) -> Actions:
        """Samples an action for each of ``[envs, observation]``."""
        noise = torch.randn(len(observations), self._shape.action_size, generator=self._generator, device=self._device)
        return self._act(observations, noise)

    @torch.inference_mode()
    def generate_most_likely(self, observations: Floats) -> Actions:
        """The most likely action for each of ``[envs, observation]``: for evaluation."""
        return self._act(observations, None)

    def _act(self, observations: Floats, noise: torch.Tensor | None) -> Actions:
        actions, log_probabilities = self._policy.act(torch.from_numpy(observations).to(self._device), noise)
        return Actions(actions.cpu().numpy(), log_probabilities.cpu().numpy())
