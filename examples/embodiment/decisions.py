"""Policy decisions for an env worker: by inference in its own process, or by the rollout group."""

from __future__ import annotations

import asyncio
from typing import Protocol

import torch
from inference import PolicyInference
from pipeline import Layout, Queues, View
from rollouts import Actions, Floats, concatenate


class Decisions(Protocol):
    """Interface: actions for all stages of an env worker, during one rollout or evaluation."""

    async def decide(self, stage: int, observations: Floats) -> Actions:
        """Return actions for ``[envs, observation]``."""
        ...

    async def end(self, stage: int) -> None:
        """End the stage: it needs no more actions."""
        ...


class OwnDecisions:
    """Inference in the env worker itself, without messages.

    Args:
        noise: one generator per stage; None for the most likely actions.
    """

    def __init__(self, inference: PolicyInference, noise: list[torch.Generator] | None) -> None:
        self._inference, self._noise = inference, noise

    async def decide(self, stage: int, observations: Floats) -> Actions:
        actions = await self._inference.act(observations, None if self._noise is None else self._noise[stage])
        # Lets weights arrive, other stages step, and the worker answer its daemon between two steps of the simulators.
        await asyncio.sleep(0)
        return actions

    async def end(self, stage: int) -> None:
        pass


class RolloutGroupDecisions:
    """Inference by the rollout group, requested through queues."""

    def __init__(self, queues: Queues, layout: Layout, env_rank: int) -> None:
        self._queues, self._layout, self._env_rank = queues, layout, env_rank

    async def decide(self, stage: int, observations: Floats) -> Actions:
        shares = self._layout.rollout_shares(self._env_rank, len(observations))
        puts = [
            self._queues.observations.put(View(self._env_rank, observations[rows]), weight=1, key=(stage, peer))
            for peer, rows in shares.items()
        ]
        decided = [await self._queues.actions.get(key=(stage, self._env_rank, peer)) for peer in shares]
        for put in puts:
            await put
        return concatenate(decided)

    async def end(self, stage: int) -> None:
        for peer in self._layout.rollout_shares(self._env_rank, 0):
            await self._queues.observations.put(View(self._env_rank, None), weight=1, key=(stage, peer))
