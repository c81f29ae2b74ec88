"""Division of a training step's responses among batches, ranks and optimiser steps."""

from __future__ import annotations

from dataclasses import dataclass

from reasoning_config import Configuration

from rlinf_async.errors import ConfigError


@dataclass(frozen=True)
class Batches:
    """Sizes that fit each other.

    Attributes:
        count: batches of problems in a training step; actor rank r learns from every one whose index is r modulo
            the number of actor ranks.
        responses: in a training step.
        minibatch_per_rank: responses of a rank in an optimiser step.
    """

    count: int
    responses: int
    minibatch_per_rank: int

    @classmethod
    def of(cls, cfg: Configuration, actor_ranks: int) -> Batches:
        """Raises:
        ConfigError: something does not divide evenly.
        """
        problems, global_batch = cfg.data.rollout_batch_size, cfg.actor.global_batch_size
        responses = problems * cfg.algorithm.group_size
        count = _divide("data.rollout_batch_size", problems, "rollout.batch_size", cfg.rollout.batch_size)
        _divide("data.rollout_batch_size / rollout.batch_size", count, "the number of actor ranks", actor_ranks)
        _divide("data.rollout_batch_size * algorithm.group_size", responses, "actor.global_batch_size", global_batch)
        minibatch = _divide("actor.global_batch_size", global_batch, "the number of actor ranks", actor_ranks)
        warm = cfg.actor.warm_start.batch_size
        _divide("actor.warm_start.batch_size", warm, "the number of actor ranks", actor_ranks)
        return cls(count, responses, minibatch)


def _divide(what: str, size: int, by: str, parts: int) -> int:
    if size % parts:
        raise ConfigError(f"{what} ({size}) cannot be divided evenly by {by} ({parts})")
    return size // parts
