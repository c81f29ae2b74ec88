"""The group that simulates."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import mujoco
from omegaconf import DictConfig
from rollouts import Floats, TaskShape, Transitions
from seeding import training_seeds
from simulators import Simulators

from rlinf_async import Worker


class EnvWorker(Worker):
    """Holds its share of ``env.total_num_envs`` simulators, and steps them all at each call."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__()
        self._cfg = cfg

    def init_worker(self, step: int) -> TaskShape:
        """Builds the simulators and begins their first episodes.

        Args:
            step: the training step that the run begins at: a resumed run sees other episodes than those
                that it has seen already.
        """
        # The simulator warns of each robot model that it loads: once is enough, and in the log.
        mujoco.set_mju_user_warning(functools.cache(self.log_warning))
        env = self._cfg.env
        share = env.total_num_envs // self._world_size
        seeds = training_seeds(self._cfg.runner.seed, step, env.total_num_envs)
        seeds = seeds[self._rank * share : (self._rank + 1) * share]
        self._training = Simulators(env.id, seeds, reward_scale=env.reward_scale)
        self._evaluation: Simulators | None = None
        return self._training.shape

    def current_observations(self) -> Floats:
        """``[envs, observation]``, what the training simulators wait to have answered."""
        return self._training.observations

    @Worker.timer("interact")
    def interact(self, actions: Floats) -> Transitions:
        """Steps the training simulators with ``actions [envs, action]``."""
        return self._training.step(actions)

    def begin_evaluation(self, seeds: Sequence[int]) -> Floats:
        """One simulator and one episode for each seed.  Returns ``[len(seeds), observation]``."""
        if self._evaluation is not None:
            self._evaluation.close()
        self._evaluation = Simulators(self._cfg.env.id, seeds, restart=False)
        return self._evaluation.observations

    def interact_in_evaluation(self, actions: Floats) -> Transitions:
        """Steps the episodes that :meth:`begin_evaluation` began; those that are over stand still."""
        if self._evaluation is None:
            raise RuntimeError("interact_in_evaluation() before begin_evaluation()")
        return self._evaluation.step(actions)
