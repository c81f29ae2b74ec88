"""Division of one step's experience over ranks, optimiser steps and forward passes."""

from __future__ import annotations

from dataclasses import dataclass

from configuration import Configuration

from rlinf_async.errors import ConfigError


@dataclass(frozen=True)
class BatchSizes:
    """Numbers of transitions.

    Attributes:
        rollout: transitions of all simulators in one training step.
        rollout_per_rank: share of one actor rank.
        minibatch_per_rank: contribution of one actor rank to an optimiser step.
        micro_batch: transitions in one forward pass; gradients of several add up.
        minibatches: optimiser steps in one pass over the rollout.
    """

    rollout: int
    rollout_per_rank: int
    minibatch_per_rank: int
    micro_batch: int
    minibatches: int

    @classmethod
    def of(cls, cfg: Configuration, *, env_ranks: int, actor_ranks: int) -> BatchSizes:
        """Raises:
        ConfigError: a size does not divide evenly; the message has the keys that it comes from.
        """
        envs, steps = cfg.env.total_num_envs, cfg.algorithm.rollout_steps
        global_batch, micro_batch = cfg.actor.global_batch_size, cfg.actor.micro_batch_size
        rollout = envs * steps
        envs_per_rank = _divide("env.total_num_envs", envs, "the ranks of env", env_ranks)
        stages = cfg.rollout.pipeline_stage_num
        _divide("a rank's share of env.total_num_envs", envs_per_rank, "rollout.pipeline_stage_num", stages)
        _divide("env.total_num_envs", envs, "the ranks of actor", actor_ranks)
        _divide("env.total_num_envs * algorithm.rollout_steps", rollout, "actor.global_batch_size", global_batch)
        minibatch = _divide("actor.global_batch_size", global_batch, "the ranks of actor", actor_ranks)
        _divide("a rank's share of actor.global_batch_size", minibatch, "actor.micro_batch_size", micro_batch)
        return cls(rollout, rollout // actor_ranks, minibatch, micro_batch, rollout // global_batch)


def _divide(what: str, size: int, by: str, parts: int) -> int:
    if size % parts:
        raise ConfigError(f"{what} ({size}) cannot be divided evenly by {by} ({parts})")
    return size // parts
