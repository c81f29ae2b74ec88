"""Records of arrays that the groups exchange (actions, transitions, batches); functions to join and split them.

``envs`` below is the number of simulators that a record speaks of: those of one worker, or all of them once
:func:`concatenate` has put the workers' records side by side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
Choices = NDArray[np.int64]


@dataclass(frozen=True)
class TaskShape:
    """Sizes of an observation and of an action.

    Attributes:
        action_size: numbers in an action, or the number of choices if ``discrete``.
        discrete: True if an action is a choice.
    """

    observation_size: int
    action_size: int
    discrete: bool = False


@dataclass(frozen=True)
class Actions:
    """Decisions of the policy.

    Attributes:
        actions: ``[envs, action]`` in [-1, 1], or choices ``[envs]``.
        log_probabilities: ``[envs]``.
        versions: ``[envs]``, the versions of the weights that acted.
    """

    actions: Floats | Choices
    log_probabilities: Floats
    versions: NDArray[np.int64]


@dataclass(frozen=True)
class Transitions:
    """Results of one step of the simulators.

    Attributes:
        next_observations: ``[envs, observation]``, the states after the actions.
        observations: ``[envs, observation]``, the next input: the same states, or the first of a new episode.
        rewards, terminated, truncated: ``[envs]``.
        finished_returns: undiscounted, unscaled returns of the episodes that ended in this step.
        finished_lengths: their lengths in steps.
    """

    next_observations: Floats
    observations: Floats
    rewards: Floats
    terminated: Flags
    truncated: Flags
    finished_returns: Floats
    finished_lengths: NDArray[np.int64]


@dataclass(frozen=True)
class RolloutBatch:
    """A stretch of experience; every field is ``[steps, envs, ...]``."""

    observations: Floats
    actions: Floats | Choices
    log_probabilities: Floats
    next_observations: Floats
    rewards: Floats
    terminated: Flags
    truncated: Flags


Record = TypeVar("Record")


def concatenate(records: Sequence[Record]) -> Record:
    """Join the workers' records, in rank order, along the first axis of every field."""
    first: Any = records[0]
    names = [field.name for field in dataclasses.fields(first)]
    return type(first)(**{name: np.concatenate([getattr(record, name) for record in records]) for name in names})


def share_actions(decided: Actions, sizes: Sequence[int]) -> list[Actions]:
    """Split one record into several, of ``sizes`` envs."""
    cuts = [np.split(array, np.cumsum(sizes)[:-1]) for array in vars(decided).values()]
    return [Actions(*shares) for shares in zip(*cuts, strict=True)]


def share_envs(batch: RolloutBatch, rows: slice) -> RolloutBatch:
    """Return the part of a batch that belongs to some simulators."""
    return RolloutBatch(**{field.name: getattr(batch, field.name)[:, rows] for field in dataclasses.fields(batch)})


def join_envs(batches: Sequence[RolloutBatch]) -> RolloutBatch:
    """Join batches of different simulators over the same steps."""
    names = [field.name for field in dataclasses.fields(RolloutBatch)]
    return RolloutBatch(**{name: np.concatenate([getattr(batch, name) for batch in batches], axis=1) for name in names})


def stack_steps(
    observations: Sequence[Floats], actions: Sequence[Actions], transitions: Sequence[Transitions]
) -> RolloutBatch:
    """Join the steps of all simulators to one batch; ``actions[t]`` answers ``observations[t]``."""
    return RolloutBatch(
        observations=np.stack(observations),
        actions=np.stack([step.actions for step in actions]),
        log_probabilities=np.stack([step.log_probabilities for step in actions]),
        next_observations=np.stack([step.next_observations for step in transitions]),
        rewards=np.stack([step.rewards for step in transitions]),
        terminated=np.stack([step.terminated for step in transitions]),
        truncated=np.stack([step.truncated for step in transitions]),
    )
