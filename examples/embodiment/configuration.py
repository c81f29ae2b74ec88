"""What a job of this example can be told, and what of it makes sense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

from rlinf_async.configuration import Claim, check_values, find_configuration, read_configuration

CONFIG_FOLDER = Path(__file__).parent / "config"
COMPONENTS = ("actor", "rollout", "env")
DEVICES = ("auto", "cpu", "cuda")
LR_SCHEDULES = ("constant", "linear")


@dataclass
class Cluster:
    num_nodes: int = 1
    component_placement: dict[str, Any] = MISSING  # read by HybridComponentPlacement


@dataclass
class Logger:
    log_path: str = MISSING  # TensorBoard files, checkpoints and the evaluation go here


@dataclass
class Evaluation:
    episodes: int = 20
    interval: int = 0  # training steps between evaluations on the way; 0: only one, at the end
    target_return: float | None = None  # training ends when one on the way reaches it


@dataclass
class Runner:
    logger: Logger = field(default_factory=Logger)
    seed: int = 0
    max_epochs: int = MISSING  # passes of the training loop
    max_steps: int = -1  # an upper bound on the same; -1: none
    save_interval: int = 0  # training steps between checkpoints; 0: only one, at the end
    resume_dir: str | None = None  # a log path, or a checkpoint, to go on from
    only_eval: bool = False  # evaluate rollout.model.model_path and end
    eval: Evaluation = field(default_factory=Evaluation)


@dataclass
class Model:
    model_path: str | None = None  # a checkpoint whose policy to begin with; none: random weights
    hidden_sizes: list[int] = field(default_factory=lambda: [64, 64])
    initial_log_std: float = 0.0  # log of the spread of the first actions; 0 is half the range to each side


@dataclass
class Optimizer:
    lr: float = MISSING
    eps: float = 1e-5
    clip_grad: float = 0.5
    lr_schedule: str = "constant"  # or linear: down to nothing at the last step


@dataclass
class Actor:
    global_batch_size: int = MISSING  # transitions in an optimiser step, over all ranks
    micro_batch_size: int = MISSING  # transitions in a forward pass, on one rank
    device: str = "auto"  # auto, cpu or cuda
    model: Model = field(default_factory=Model)
    optim: Optimizer = field(default_factory=Optimizer)


@dataclass
class RolloutModel:
    model_path: str | None = None


@dataclass
class Rollout:
    device: str = "auto"
    overlap_weight_sync: bool = False  # begin a rollout before the new weights are there; see rollout/staleness
    pipeline_stage_num: int = 1  # parts of an env worker's simulators that step while others' actions are computed
    model: RolloutModel = field(default_factory=RolloutModel)


@dataclass
class Algorithm:
    rollout_steps: int = MISSING  # of every simulator, in one training step
    update_epochs: int = 10  # passes over them
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_ratio: float = 0.2
    value_loss_coefficient: float = 0.5
    entropy_bonus: float = 0.0
    normalize_advantages: bool = True
    target_kl: float | None = None  # no further pass when the last one moved the policy beyond it


@dataclass
class Environment:
    id: str = MISSING  # a gymnasium task
    total_num_envs: int = MISSING  # simulators, over all ranks
    reward_scale: float = 1.0


@dataclass
class Configuration:
    cluster: Cluster = field(default_factory=Cluster)
    runner: Runner = field(default_factory=Runner)
    actor: Actor = field(default_factory=Actor)
    rollout: Rollout = field(default_factory=Rollout)
    algorithm: Algorithm = field(default_factory=Algorithm)
    env: Environment = field(default_factory=Environment)


def load_configuration(name: str, overrides: Sequence[str] = ()) -> DictConfig:
    """Reads a configuration, checks it, and makes it read-only.

    Args:
        name: the name of a file in ``config/``, or a path to a YAML file.
        overrides: ``key.of.it=value``, values in YAML.

    Raises:
        ConfigError: unknown, missing or ill-typed keys, values out of range; names the file or the override.
    """
    path = find_configuration(name, CONFIG_FOLDER)
    cfg = read_configuration(Configuration, path, overrides, COMPONENTS)
    check_values(cfg, _claims(cfg), path, overrides)
    OmegaConf.set_readonly(cfg, True)
    return cfg


def last_step(cfg: DictConfig) -> int:
    """The number of training steps of a whole run: ``max_epochs``, or ``max_steps`` where that is less."""
    epochs, steps = cfg.runner.max_epochs, cfg.runner.max_steps
    return int(epochs if steps < 0 else min(epochs, steps))


def _claims(cfg: DictConfig) -> list[Claim]:
    """What types cannot say."""
    at_least_one = [
        "cluster.num_nodes",
        "runner.max_epochs",
        "runner.eval.episodes",
        "actor.global_batch_size",
        "actor.micro_batch_size",
        "rollout.pipeline_stage_num",
        "algorithm.rollout_steps",
        "algorithm.update_epochs",
        "env.total_num_envs",
    ]
    not_negative = ["runner.seed", "runner.save_interval", "runner.eval.interval"]
    above_zero = ["actor.optim.lr", "algorithm.clip_ratio", "algorithm.gamma"]
    choices = {
        "actor.device": DEVICES,
        "rollout.device": DEVICES,
        "actor.optim.lr_schedule": LR_SCHEDULES,
    }
    placed = {part.strip() for names in cfg.cluster.component_placement for part in str(names).split(",")}
    has_policy = cfg.rollout.model.model_path is not None
    return [
        *((key, OmegaConf.select(cfg, key) >= 1, "must be at least 1") for key in at_least_one),
        *((key, OmegaConf.select(cfg, key) >= 0, "must not be negative") for key in not_negative),
        *((key, OmegaConf.select(cfg, key) > 0, "must be above 0") for key in above_zero),
        *((key, OmegaConf.select(cfg, key) in known, f"must be {_or(known)}") for key, known in choices.items()),
        ("algorithm.gamma", cfg.algorithm.gamma <= 1, "must be at most 1"),
        ("algorithm.gae_lambda", 0 <= cfg.algorithm.gae_lambda <= 1, "must be from 0 to 1"),
        ("cluster.component_placement", placed == set(COMPONENTS), f"must place {', '.join(COMPONENTS)}"),
        ("runner.only_eval", has_policy or not cfg.runner.only_eval, "needs rollout.model.model_path"),
    ]


def _or(known: Sequence[str]) -> str:
    return f"{', '.join(known[:-1])} or {known[-1]}"
