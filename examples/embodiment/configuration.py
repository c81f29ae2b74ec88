"""Schema of the embodiment example's configuration, and checks across its keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.schema import (
    DEVICES,
    Logger,
    RolloutModel,
    Schema,
    above_zero,
    at_least_one,
    chosen,
    not_negative,
    placed_components,
    supervised,
)
from omegaconf import MISSING, DictConfig

from rlinf_async.configuration import Claim

MODES = ("sync", "async")
PLACEMENTS = ("auto", "with_env", "workers")


@dataclass(frozen=True)
class Cluster:
    num_nodes: int = 1
    component_placement: dict[str, Any] = field(default_factory=dict)  # defaults.py places missing components
    supervision: dict[str, Any] = field(default_factory=dict)  # env: {restart: rank}, actor: {restart: group}


@dataclass(frozen=True)
class Evaluation:
    episodes: int = 20
    interval: int = 0  # training steps between evaluations during training; 0: only a final one
    target_return: float | None = None  # training ends when an evaluation reaches it


@dataclass(frozen=True)
class Runner:
    mode: str = "sync"  # or async: simulators run while the actor learns, up to algorithm.max_staleness steps ahead
    logger: Logger = field(default_factory=Logger)
    seed: int = 0
    max_epochs: int = MISSING  # passes of the training loop
    max_steps: int = -1  # upper bound on the number of training steps; -1: none
    save_interval: int = 0  # training steps between checkpoints; 0: only a final one
    resume_dir: str | None = None  # log path or checkpoint to resume from; auto: this log path, if it has a checkpoint
    only_eval: bool = False  # evaluate rollout.model.model_path and stop
    video: bool = False  # write an MP4 of the evaluated policy's first episode, rendered without a screen
    eval: Evaluation = field(default_factory=Evaluation)


@dataclass(frozen=True)
class Model:
    model_path: str | None = None  # checkpoint with the initial policy; none: random weights
    hidden_sizes: list[int] = field(default_factory=lambda: [64, 64])
    initial_log_std: float = 0.0  # initial log standard deviation of actions; a deviation of 1 is half their range


@dataclass(frozen=True)
class Optimizer:
    lr: float = MISSING
    eps: float = 1e-5
    clip_grad: float = 0.5
    lr_schedule: str = "constant"  # or linear: decays to zero at the last step


@dataclass(frozen=True)
class Actor:
    global_batch_size: int = MISSING  # transitions in an optimiser step, over all ranks
    micro_batch_size: int = MISSING  # transitions in a forward pass, on one rank
    device: str = "auto"  # auto, cpu or cuda
    threads: int = 0  # torch threads of each rank; 0: by the size of the model
    model: Model = field(default_factory=Model)
    optim: Optimizer = field(default_factory=Optimizer)


@dataclass(frozen=True)
class Rollout:
    device: str = "auto"
    placement: str = "auto"  # with_env: inference in the env workers; workers: in its own group; auto: by size
    pipeline_stage_num: int = 0  # stages of an env worker's simulators, stepped in turn; 0: 2 with workers, else 1
    model: RolloutModel = field(default_factory=RolloutModel)


@dataclass(frozen=True)
class Algorithm:
    rollout_steps: int = MISSING  # steps of every simulator in one training step
    update_epochs: int = 10  # passes over these steps
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_ratio: float = 0.2
    value_loss_coefficient: float = 0.5
    entropy_bonus: float = 0.0
    normalize_advantages: bool = True
    recompute_advantages: bool = True  # before each pass, with the current value function; else once
    target_kl: float | None = None  # stop the passes once one has moved the policy further than this
    max_staleness: int = 1  # async: training steps that acting weights may be behind the learning ones
    importance_cap: float = 2.0  # async: upper bound of an action's importance weight


@dataclass(frozen=True)
class Environment:
    id: str = MISSING  # a gymnasium task
    total_num_envs: int = MISSING  # simulators, over all ranks
    reward_scale: float = 1.0


@dataclass(frozen=True)
class Configuration:
    cluster: Cluster = field(default_factory=Cluster)
    runner: Runner = field(default_factory=Runner)
    actor: Actor = field(default_factory=Actor)
    rollout: Rollout = field(default_factory=Rollout)
    algorithm: Algorithm = field(default_factory=Algorithm)
    env: Environment = field(default_factory=Environment)


def last_step(cfg: Configuration) -> int:
    """Return the number of training steps of a whole run: ``max_epochs``, or ``max_steps`` if that is smaller."""
    epochs, steps = cfg.runner.max_epochs, cfg.runner.max_steps
    return epochs if steps < 0 else min(epochs, steps)


def _claims(cfg: DictConfig) -> list[Claim]:
    sizes = ("actor.micro_batch_size", "algorithm.rollout_steps", "algorithm.update_epochs", "env.total_num_envs")
    has_rollout = "rollout" in placed_components(cfg)
    return [
        *at_least_one(cfg, "runner.eval.episodes", "algorithm.max_staleness", *sizes),
        *not_negative(
            cfg, "runner.save_interval", "runner.eval.interval", "rollout.pipeline_stage_num", "actor.threads"
        ),
        *above_zero(cfg, "algorithm.gamma"),
        *chosen(cfg, {"runner.mode": MODES, "rollout.placement": PLACEMENTS, "rollout.device": DEVICES}),
        *supervised(cfg, rank=("env", "rollout"), group=("actor",)),
        ("algorithm.importance_cap", cfg.algorithm.importance_cap >= 1, "must be at least 1"),
        (
            "rollout.placement",
            not (has_rollout and cfg.rollout.placement == "with_env"),
            "leaves nothing to place: take rollout out of cluster.component_placement, or say workers",
        ),
        ("algorithm.gamma", cfg.algorithm.gamma <= 1, "must be at most 1"),
        ("algorithm.gae_lambda", 0 <= cfg.algorithm.gae_lambda <= 1, "must be from 0 to 1"),
    ]


SCHEMA = Schema(
    Configuration, Path(__file__).parent / "config", ("actor", "rollout", "env"), _claims, must_place_all=False
)
