"""Channels between the groups during a rollout, and the layout of batches over ranks and stages.

Each env worker's simulators are cut into ``rollout.pipeline_stage_num`` stages, and every stage goes its own round::

    env worker      observations of a stage ──► queue of observations ──► rollout worker
         ▲                                                                     │
         └────────────────────── queue of actions ◄────────────────────────────┘

While one stage's simulators step, the actions of another are computed, or are on their way.  Both sides wait only for
each other: a rollout worker for the stage's observations from all its env workers, an env worker for the actions.
A rollout worker takes a stage's observations from all of them as one batch, in the order of their ranks: batches are
the same in every run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rollouts import Floats

from rlinf_async import Channel, Experience


@dataclass(frozen=True)
class View:
    """Observations of one stage of an env worker, for a rollout worker.

    Attributes:
        observations: ``[envs, observation]``; None once the stage needs no more actions.
    """

    env_rank: int
    observations: Floats | None


@dataclass(frozen=True)
class Queues:
    """Channels of a rollout.

    Attributes:
        observations: env → rollout, key ``(stage, rollout rank)``: a :class:`View` of weight 1.
        actions: rollout → env, key ``(stage, env rank, rollout rank)``: ``Actions``, the answer to one view.
        experience: env → actor, key actor rank: the number and the ``RolloutBatch`` of each part, in a group for each
            training step.
    """

    observations: Channel
    actions: Channel
    experience: Experience

    @classmethod
    async def open(cls, layout: Layout, max_staleness: int) -> Queues:
        """Create the channels."""
        observations, actions = [await Channel.create(name, distributed=True) for name in ("observations", "actions")]
        experience = Experience.create("experience", layout.parts_per_actor, max_staleness, of="actor")
        return cls(observations, actions, await experience)

    async def close(self) -> None:
        """End all waits on the channels, and drop their content."""
        for queue in (self.observations, self.actions, self.experience):
            await queue.aclose(discard=True)


@dataclass(frozen=True)
class Layout:
    """Numbers of ranks and stages, and the exchange partners that follow from them.

    Stage s of env worker r holds block ``r * stages + s`` of all simulators. Each actor rank learns from the same
    number of parts of these blocks.
    """

    env_ranks: int
    rollout_ranks: int
    actor_ranks: int
    stages: int

    def rollout_shares(self, env_rank: int, rows: int) -> dict[int, slice]:
        """Return which of the ``rows`` of each stage an env worker sends to which rollout rank."""
        return shares(rows, env_rank, self.env_ranks, self.rollout_ranks)

    def env_peers(self, rollout_rank: int) -> range:
        """Return the env ranks that send observations to a rollout worker."""
        return peers(rollout_rank, self.rollout_ranks, self.env_ranks)

    @property
    def parts_per_actor(self) -> int:
        """Number of parts for each actor rank: part p is for rank ``p // parts_per_actor``."""
        return math.lcm(self.env_ranks * self.stages, self.actor_ranks) // self.actor_ranks

    def experience_parts(self, env_rank: int, stage: int, rows: int) -> dict[int, slice]:
        """Return which of a stage's ``rows`` are in which part."""
        parts = self.parts_per_actor * self.actor_ranks
        return shares(rows, env_rank * self.stages + stage, self.env_ranks * self.stages, parts)


def peers(part: int, parts: int, others: int) -> range:
    """Return the parts of the second of two even divisions that overlap ``part`` of the first."""
    return range(part * others // parts, -(-(part + 1) * others // parts))


def shares(rows: int, part: int, parts: int, others: int) -> dict[int, slice]:
    """Return every peer of ``part`` in the other division, with its share of the ``rows``.

    A peer's share is empty if there are too few rows.
    """

    def border(other: int) -> int:
        return min(rows, max(0, rows * (other * parts - part * others) // others))

    return {other: slice(border(other), border(other + 1)) for other in peers(part, parts, others)}
