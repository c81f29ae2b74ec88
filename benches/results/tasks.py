"""Tasks of the comparison, with the hyperparameters of every contestant read from the embodiment example's files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from omegaconf import OmegaConf

from ..contestant import ROOT

CONFIGURATIONS: Final = ROOT / "examples" / "embodiment" / "config"

TASKS: Final = {
    "InvertedPendulum-v5": "inverted_pendulum_ppo",
    "Reacher-v5": "reacher_ppo",
    "HalfCheetah-v5": "halfcheetah_ppo",
    "Hopper-v5": "hopper_ppo",
}
"""Configuration file of each gymnasium task."""

EVALUATION_SEEDS: Final = tuple(2 * 2**29 + index for index in range(20))
"""Seeds of the final evaluation's simulators, as in examples/embodiment; training uses seeds below 2**29."""


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of one run, as the references read them from settings.json.

    Attributes:
        updates: rollouts, each followed by ``update_epochs`` passes over it.
        minibatch_size: transitions in an optimiser step.
        value_loss_coefficient: factor of half the mean squared error.
        lr_schedule: ``constant``, or ``linear`` from ``lr`` at the first update to ``lr / updates`` at the last.
    """

    env: str
    seed: int
    num_envs: int
    rollout_steps: int
    updates: int
    minibatch_size: int
    update_epochs: int
    lr: float
    lr_schedule: str
    adam_eps: float
    max_grad_norm: float
    gamma: float
    gae_lambda: float
    clip_ratio: float
    value_loss_coefficient: float
    entropy_bonus: float
    normalize_advantages: bool
    target_kl: float | None
    hidden_sizes: list[int]
    initial_log_std: float
    reward_scale: float
    evaluation_seeds: list[int]

    @property
    def samples(self) -> int:
        """Transitions of the whole run."""
        return self.updates * self.num_envs * self.rollout_steps


def read_settings(task: str, seed: int, folder: Path = CONFIGURATIONS) -> Settings:
    """Return the settings of one run of a task in :data:`TASKS`.

    Raises:
        omegaconf.errors.ConfigAttributeError: the file lacks a key.
        ValueError: the file belongs to another task.
    """
    path = folder / f"{TASKS[task]}.yaml"
    cfg = OmegaConf.load(path)
    if cfg.env.id != task:
        raise ValueError(f"{path}: env.id is {cfg.env.id}, TASKS of benches/results/tasks.py says {task}")
    actor, algorithm = cfg.actor, cfg.algorithm
    return Settings(
        env=task,
        seed=seed,
        num_envs=cfg.env.total_num_envs,
        rollout_steps=algorithm.rollout_steps,
        updates=cfg.runner.max_epochs,
        minibatch_size=actor.global_batch_size,
        update_epochs=algorithm.update_epochs,
        lr=actor.optim.lr,
        lr_schedule=actor.optim.lr_schedule,
        adam_eps=actor.optim.eps,
        max_grad_norm=actor.optim.clip_grad,
        gamma=algorithm.gamma,
        gae_lambda=algorithm.gae_lambda,
        clip_ratio=algorithm.clip_ratio,
        value_loss_coefficient=algorithm.value_loss_coefficient,
        entropy_bonus=algorithm.entropy_bonus,
        normalize_advantages=algorithm.normalize_advantages,
        target_kl=algorithm.target_kl,
        hidden_sizes=list(actor.model.hidden_sizes),
        initial_log_std=actor.model.initial_log_std,
        reward_scale=cfg.env.reward_scale,
        evaluation_seeds=list(EVALUATION_SEEDS),
    )
