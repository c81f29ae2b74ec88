"""Configuration schema of the reasoning example, and the checks across its keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.schema import Logger, RolloutModel, Schema, above_zero, at_least_one, chosen, not_negative, supervised
from grpo import KL_ESTIMATORS, LOSS_AGGREGATIONS
from omegaconf import MISSING, DictConfig

from rlinf_async.configuration import Claim

TASKS = ("arithmetic", "countdown")
MODEL_SIZES = tuple(
    f"actor.model.{key}"
    for key in (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
    )
)


@dataclass(frozen=True)
class Cluster:
    num_nodes: int = 1
    fake_gpus: int | None = None  # GPUs to declare on a machine without any: everything computes on the CPU
    component_placement: dict[str, Any] = MISSING  # with two accelerators or more: see placing.py
    supervision: dict[str, Any] = field(default_factory=dict)  # rollout: {restart: rank}, actor: {restart: group}


@dataclass(frozen=True)
class Runner:
    logger: Logger = field(default_factory=Logger)
    seed: int = 0
    max_epochs: int = MISSING  # passes over the training problems
    max_steps: int = -1  # training steps at most; -1: as many as the epochs have
    save_interval: int = 0  # training steps between checkpoints; 0: none
    resume_dir: str | None = None  # a log path, or a checkpoint, to go on from; auto: this log path, if it has one
    eval_samples: int = 16  # responses to each held-out problem before and after training, for pass@k
    eval_interval: int = 0  # training steps between evaluations on the way, which decide nothing; 0: none
    only_eval: bool = False  # evaluate rollout.model.model_path and end


@dataclass(frozen=True)
class Data:
    task: str = "arithmetic"  # or countdown
    terms: int = 2  # numbers in a problem
    largest: int = 99  # each from 1 to this
    train_size: int = MISSING  # problems to learn from
    held_out_size: int = 512  # problems for evaluation, the same in every run
    selection_size: int = 256  # problems that decide when the warm start is over, likewise
    rollout_batch_size: int = MISSING  # problems in a training step


@dataclass(frozen=True)
class Model:
    model_path: str | None = None  # a folder with a model to begin with; none: random weights and a warm start
    hidden_size: int = 64
    intermediate_size: int = 192
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    max_position_embeddings: int = 64
    initializer_range: float = 0.05


@dataclass(frozen=True)
class Tokenizer:
    tokenizer_model: str | None = None  # a folder with a tokenizer; none: one for the task's characters


@dataclass(frozen=True)
class WarmStart:
    target_accuracy: float = 0.15  # on the selection problems; then the learning rate falls to nothing, and that is all
    max_steps: int = 2000  # the warm start has failed when it takes longer
    check_interval: int = 10  # steps between looks at the accuracy
    further_steps: int = 0  # after the target: with runner.max_steps=0, the supervised control of a run
    cool_down_steps: int = 40
    batch_size: int = 256  # demonstrations in a step, over all ranks
    lr: float = 2e-3


@dataclass(frozen=True)
class Optimizer:
    lr: float = MISSING
    lr_schedule: str = "constant"  # or linear: down to nothing at the last step
    beta2: float = 0.95
    weight_decay: float = 0.0
    clip_grad: float = 1.0


@dataclass(frozen=True)
class Actor:
    global_batch_size: int = MISSING  # responses in an optimiser step, over all ranks
    micro_batch_size: int = MISSING  # responses in a forward pass, on one rank
    device: str = "auto"  # auto, cpu or cuda
    model: Model = field(default_factory=Model)
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    warm_start: WarmStart = field(default_factory=WarmStart)
    optim: Optimizer = field(default_factory=Optimizer)


@dataclass(frozen=True)
class Rollout:
    device: str = "auto"
    batch_size: int = MISSING  # problems that a rank works on at a time
    max_staleness: int = 0  # 1: the next step's responses are sampled while the actor still learns from this one's
    model: RolloutModel = field(default_factory=RolloutModel)


@dataclass(frozen=True)
class Algorithm:
    group_size: int = MISSING  # responses to each problem
    temperature: float = 1.0
    norm_adv_by_std_in_grpo: bool = True  # false: Dr. GRPO
    loss_agg_func: str = "seq-mean-token-mean"  # or token-mean, or seq-mean-token-sum
    clip_ratio: float = 0.2
    clip_ratio_low: float | None = None  # downwards; none: clip_ratio
    clip_ratio_high: float | None = None  # upwards; none: clip_ratio
    kl_beta: float = 0.0  # weight of the distance from the model that training began with; 0: not computed
    kl_penalty_type: str = "low_var_kl"  # its estimator: k1, k2, k3 (which is low_var_kl) or abs
    importance_sampling_fix: bool = False  # weighs each token by trainer / sampler, before the trainer learns
    importance_sampling_clip: float = 2.0  # at most
    max_num_gen_batches: int = 1  # above 1, groups without a signal are replaced: so many times the problems at most


@dataclass(frozen=True)
class Configuration:
    cluster: Cluster = field(default_factory=Cluster)
    runner: Runner = field(default_factory=Runner)
    data: Data = field(default_factory=Data)
    actor: Actor = field(default_factory=Actor)
    rollout: Rollout = field(default_factory=Rollout)
    algorithm: Algorithm = field(default_factory=Algorithm)


def steps_per_epoch(cfg: Configuration) -> int:
    return int(cfg.data.train_size // cfg.data.rollout_batch_size)


def last_step(cfg: Configuration) -> int:
    """The number of training steps of a whole run: those of ``max_epochs``, or ``max_steps`` where that is less."""
    steps = cfg.runner.max_epochs * steps_per_epoch(cfg)
    return int(steps if cfg.runner.max_steps < 0 else min(steps, cfg.runner.max_steps))


def clip_range(cfg: Configuration) -> tuple[float, float]:
    """How far below and above 1 the probability ratio may gain by moving."""
    algorithm = cfg.algorithm
    low, high = algorithm.clip_ratio_low, algorithm.clip_ratio_high
    return algorithm.clip_ratio if low is None else low, algorithm.clip_ratio if high is None else high


def _claims(cfg: DictConfig) -> list[Claim]:
    batch = cfg.data.rollout_batch_size
    width, heads = cfg.actor.model.hidden_size, cfg.actor.model.num_attention_heads
    given = (cfg.algorithm.clip_ratio_low, cfg.algorithm.clip_ratio_high)
    names = ("algorithm.clip_ratio_low", "algorithm.clip_ratio_high")
    limits = [name for name, value in zip(names, given, strict=True) if value is not None]
    low, _ = clip_range(cfg)
    return [
        ("algorithm.clip_ratio_low", low < 1, f"must be below 1: a ratio is never below 0; it is {low}"),
        *at_least_one(
            cfg,
            *(f"data.{name}" for name in ("largest", "train_size", "held_out_size", "selection_size")),
            "data.rollout_batch_size",
            *(f"actor.model.{name}" for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")),
            "runner.eval_samples",
            "algorithm.max_num_gen_batches",
            *(f"actor.warm_start.{name}" for name in ("max_steps", "check_interval", "cool_down_steps", "batch_size")),
            "rollout.batch_size",
        ),
        *not_negative(cfg, "runner.eval_interval", "runner.save_interval", "algorithm.kl_beta"),
        *not_negative(cfg, "actor.warm_start.further_steps"),
        *supervised(cfg, rank=("rollout", "reward"), group=("actor",)),
        *chosen(cfg, {"data.task": TASKS, "algorithm.loss_agg_func": (*LOSS_AGGREGATIONS,)}),
        *chosen(cfg, {"algorithm.kl_penalty_type": (*KL_ESTIMATORS,)}),
        *above_zero(cfg, *limits, "actor.warm_start.lr", "algorithm.temperature", "algorithm.importance_sampling_clip"),
        ("data.terms", cfg.data.terms >= 2, "must be at least 2"),
        ("data.train_size", cfg.data.train_size >= batch, f"must be at least data.rollout_batch_size ({batch})"),
        ("actor.warm_start.target_accuracy", 0 <= cfg.actor.warm_start.target_accuracy <= 1, "must be from 0 to 1"),
        ("actor.model.hidden_size", width % (2 * heads) == 0, f"must be a multiple of twice the heads ({heads})"),
        ("algorithm.group_size", cfg.algorithm.group_size >= 2, "must be at least 2: a group is its own baseline"),
        ("rollout.max_staleness", cfg.rollout.max_staleness in (0, 1), "must be 0 or 1"),
    ]


SCHEMA = Schema(Configuration, Path(__file__).parent / "config" / "math", ("actor", "rollout", "reward"), _claims)
