"""Configuration schema of the reasoning example, and the checks across its keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import schema
from common.schema import RolloutModel, Schema, above_zero, at_least_one, chosen, not_negative, supervised
from grpo import KL_ESTIMATORS, LOSS_AGGREGATIONS
from omegaconf import MISSING, DictConfig

from rlinf_async.configuration import Claim
from rlinf_async.errors import ConfigError

ENGINES = ("transformers", "vllm", "http")
TASKS = ("arithmetic", "countdown")


@dataclass(frozen=True)
class Cluster:
    num_nodes: int = 1
    fake_gpus: int | None = None  # GPUs to declare on a machine without any: everything computes on the CPU
    component_placement: dict[str, Any] = MISSING  # with two accelerators or more: see placing.py
    supervision: dict[str, Any] = field(default_factory=dict)  # rollout: {restart: rank}, actor: {restart: group}


@dataclass(frozen=True)
class Logger(schema.Logger):
    wandb: str | None = None  # online or offline: log to Weights & Biases, too
    project: str = "rlinf_async-reasoning"  # there


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
    eval_interval_samples: int = 4  # responses to each held-out problem then
    only_eval: bool = False  # evaluate rollout.model.model_path and end


@dataclass(frozen=True)
class Data:
    train_path: str | None = None  # JSON lines; null: problems of the task are generated
    eval_path: str | None = None  # JSON lines of held-out problems
    task: str = "arithmetic"  # or countdown
    terms: int = 2  # numbers in a generated problem
    largest: int = 99  # each from 1 to this
    prompt: str | None = None  # template of generated prompts; null: the task's own, such as {numbers}={target}:
    train_size: int = 8192  # problems to generate
    held_out_size: int = 512  # problems to generate for evaluation, the same in every run
    rollout_batch_size: int = MISSING  # problems in a training step


@dataclass(frozen=True)
class TinyModel:
    """The model that is made on the spot, where there is no path of one."""

    model_path: str | None = None  # folder in the format of Hugging Face; null: random weights and a warm start
    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    max_position_embeddings: int = 64
    initializer_range: float = 0.05


@dataclass(frozen=True)
class WarmStart:
    steps: int = 300  # of supervised training on demonstrations
    batch_size: int = 256  # demonstrations in a step, over all ranks
    lr: float = 2e-3  # rises in the first tenth of the steps, then falls to nothing


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
    max_tokens_per_pass: int = 4096  # tokens packed into one forward pass of a rank, prompts included
    device: str = "auto"  # auto, cpu or cuda
    cpu_threads: int = 1  # of a rank that computes on the CPU
    precision: str = "float32"  # or bfloat16: by autocast; weights and optimiser states stay in float32
    gradient_checkpointing: bool = False
    model: TinyModel = field(default_factory=TinyModel)
    warm_start: WarmStart = field(default_factory=WarmStart)
    optim: Optimizer = field(default_factory=Optimizer)


@dataclass(frozen=True)
class Rollout:
    engine: str = "transformers"  # or vllm, or http, vLLM's own server
    options: dict[str, Any] = field(default_factory=dict)  # by kind: vllm: {gpu_memory_utilization: 0.5}
    env: dict[str, str] = field(default_factory=dict)  # environment of its processes
    max_tokens: int = MISSING  # of a response
    max_staleness: int = 0  # training steps that responses may be behind; 0: engines and actor take turns
    groups_in_flight: int | None = None  # problems that are answered at once; null: data.rollout_batch_size
    on_update: str | None = None  # of requests that are open when weights arrive: keep, wait or abort; null: by engine
    stall_timeout: float = 120.0  # seconds without a token after which an engine counts as hung
    reproducible: bool = False  # a seed for each response; transformers then samples one at a time
    model: RolloutModel = field(default_factory=RolloutModel)


@dataclass(frozen=True)
class Reward:
    function: str | None = (
        None  # dotted path of reward(prompt, text, meta), or (prompt, tokens, meta); null: the task's
    )
    deadline_s: float = 10.0  # for one response
    on_error: str = (
        "raise"  # or count: a call that raises or hangs gives error_reward, and train/reward_errors counts it
    )
    error_reward: float = 0.0
    truncated: float | None = 0.0  # for a response that reached max_tokens, without a call; null: the function's own
    right_from: float = 1.0  # a response with this reward or more counts as right in evaluations


@dataclass(frozen=True)
class Algorithm:
    group_size: int = MISSING  # responses to each problem
    norm_adv_by_std_in_grpo: bool = True  # false: Dr. GRPO
    loss_agg_func: str = "seq-mean-token-mean"  # or token-mean, or seq-mean-token-sum
    clip_ratio: float = 0.2
    clip_ratio_low: float | None = None  # downwards; none: clip_ratio
    clip_ratio_high: float | None = None  # upwards; none: clip_ratio
    kl_beta: float = 0.0  # weight of the distance from the model that training began with; 0: not computed
    kl_penalty_type: str = "low_var_kl"  # its estimator: k1, k2, k3 (which is low_var_kl) or abs
    importance_sampling_fix: bool = False  # weighs each token by trainer / engine, before the trainer learns
    importance_sampling_clip: float = 2.0  # at most
    max_num_gen_batches: int = 1  # above 1, groups without a signal are replaced: so many times the problems at most


@dataclass(frozen=True)
class Configuration:
    cluster: Cluster = field(default_factory=Cluster)
    runner: Runner = field(default_factory=Runner)
    data: Data = field(default_factory=Data)
    actor: Actor = field(default_factory=Actor)
    rollout: Rollout = field(default_factory=Rollout)
    reward: Reward = field(default_factory=Reward)
    algorithm: Algorithm = field(default_factory=Algorithm)


def last_step(cfg: Configuration, problems: int) -> int:
    """Return the number of training steps of a whole run: those of ``max_epochs``, or ``max_steps`` if that is less."""
    size = cfg.data.rollout_batch_size
    if problems < size:
        raise ConfigError(f"data.rollout_batch_size ({size}) is more than the {problems} problems there are: lower it")
    steps = cfg.runner.max_epochs * (problems // size)
    return steps if cfg.runner.max_steps < 0 else min(steps, cfg.runner.max_steps)


def check_batches(cfg: Configuration, actor_ranks: int) -> None:
    """Raise a ConfigError unless the responses of a training step divide evenly among optimiser steps and ranks."""
    problems, minibatch, ranks = cfg.data.rollout_batch_size, cfg.actor.global_batch_size, "the number of actor ranks"
    responses = problems * cfg.algorithm.group_size
    for name, size, by, parts in (
        ("data.rollout_batch_size", problems, ranks, actor_ranks),
        ("data.rollout_batch_size * algorithm.group_size", responses, "actor.global_batch_size", minibatch),
        ("actor.global_batch_size", minibatch, ranks, actor_ranks),
        ("actor.warm_start.batch_size", cfg.actor.warm_start.batch_size, ranks, actor_ranks),
    ):
        if size % parts:
            raise ConfigError(f"{name} ({size}) cannot be divided evenly by {by} ({parts})")


def clip_range(cfg: Configuration) -> tuple[float, float]:
    """Return how far below and above 1 the probability ratio may gain by moving."""
    algorithm = cfg.algorithm
    low, high = algorithm.clip_ratio_low, algorithm.clip_ratio_high
    return algorithm.clip_ratio if low is None else low, algorithm.clip_ratio if high is None else high


def _claims(cfg: DictConfig) -> list[Claim]:
    limits = [name for name in ("clip_ratio_low", "clip_ratio_high") if cfg.algorithm[name] is not None]
    low, _ = clip_range(cfg)  # type: ignore[arg-type]
    own_data, has_model = cfg.data.train_path is not None, cfg.actor.model.model_path is not None
    return [
        ("algorithm.clip_ratio_low", low < 1, f"must be below 1: a ratio is never below 0; it is {low}"),
        *at_least_one(
            cfg,
            *(f"data.{name}" for name in ("largest", "train_size", "held_out_size", "rollout_batch_size")),
            *(f"actor.model.{name}" for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")),
            *("actor.warm_start.steps", "actor.warm_start.batch_size", "actor.max_tokens_per_pass"),
            *("actor.cpu_threads", "runner.eval_samples", "runner.eval_interval_samples", "rollout.max_tokens"),
            "algorithm.max_num_gen_batches",
        ),
        *not_negative(cfg, *(f"runner.{name}" for name in ("eval_interval", "save_interval"))),
        *not_negative(cfg, "rollout.max_staleness", "algorithm.kl_beta"),
        *supervised(cfg, rank=("rollout", "reward"), group=("actor",)),
        *chosen(cfg, {"data.task": TASKS, "algorithm.loss_agg_func": (*LOSS_AGGREGATIONS,)}),
        *chosen(cfg, {"algorithm.kl_penalty_type": (*KL_ESTIMATORS,), "rollout.engine": ENGINES}),
        *chosen(cfg, {"reward.on_error": ("raise", "count"), "actor.precision": ("float32", "bfloat16")}),
        *chosen(cfg, {"runner.logger.wandb": ("online", "offline")} if cfg.runner.logger.wandb else {}),
        *above_zero(cfg, *(f"algorithm.{name}" for name in (*limits, "importance_sampling_clip"))),
        *above_zero(cfg, "actor.warm_start.lr", "reward.deadline_s", "rollout.stall_timeout"),
        *((f"rollout.options.{name}", name in ENGINES, "must be an engine's kind") for name in cfg.rollout.options),
        ("data.terms", cfg.data.terms >= 2, "must be at least 2"),
        ("data.eval_path", bool(cfg.data.eval_path) == own_data, "belongs to data.train_path: give both, or none"),
        ("reward.function", bool(cfg.reward.function) or not own_data, "is needed with data.train_path"),
        ("actor.model.model_path", has_model or not own_data, "is needed with data.train_path"),
        ("algorithm.group_size", cfg.algorithm.group_size >= 2, "must be at least 2: a group is its own baseline"),
    ]


SCHEMA = Schema(Configuration, Path(__file__).parent / "config" / "math", ("actor", "rollout", "reward"), _claims)
