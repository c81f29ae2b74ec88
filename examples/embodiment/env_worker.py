"""Worker group ``env``: steps simulators with the rollout's actions, and sends the experience to the actor."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from omegaconf import DictConfig
from pipeline import Layout, Queues, View
from rollouts import Actions, Floats, TaskShape, Transitions, concatenate, share_envs, stack_steps
from seeding import training_seeds
from simulators import Simulators

from rlinf_async import Worker


@dataclass(frozen=True)
class FinishedEpisode:
    """An episode that ended in step ``step`` of a rollout, and its undiscounted, unscaled return."""

    step: int
    total: float


class EnvWorker(Worker):
    """Holds its share of ``env.total_num_envs`` simulators, in stages that step independently of each other."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__()
        self._cfg = cfg

    def init_worker(self, step: int, layout: Layout) -> TaskShape:
        """Builds the simulators and begins their first episodes.

        Args:
            step: the training step that the run begins at: a resumed run sees other episodes than those
                that it has seen already.
            layout: whom to exchange with.
        """
        # The simulator warns of each robot model that it loads: once is enough, and in the log.
        mujoco.set_mju_user_warning(functools.cache(self.log_warning))
        env = self._cfg.env
        self._layout = layout
        share = env.total_num_envs // self._world_size
        seeds = training_seeds(self._cfg.runner.seed, step, env.total_num_envs)
        seeds = seeds[self._rank * share : (self._rank + 1) * share]
        self._training = [
            Simulators(env.id, stage.tolist(), reward_scale=env.reward_scale)
            for stage in np.array_split(seeds, layout.stages)
        ]
        return self._training[0].shape

    async def interact(self, queues: Queues) -> list[FinishedEpisode]:
        """``algorithm.rollout_steps`` steps of every simulator, and the experience to the actor.

        Returns:
            The episodes that ended meanwhile.
        """
        async with asyncio.TaskGroup() as stages:
            tasks = [stages.create_task(self._roll_out(stage, queues)) for stage in range(self._layout.stages)]
        return [episode for task in tasks for episode in task.result()]

    async def evaluate(self, seeds: Sequence[int], queues: Queues) -> Floats:
        """One episode for each seed, with a simulator of its own.  Returns ``[len(seeds)]``."""
        async with asyncio.TaskGroup() as stages:
            tasks = [
                stages.create_task(self._run_episodes(stage, share.tolist(), queues))
                for stage, share in enumerate(np.array_split(seeds, self._layout.stages))
            ]
        return np.concatenate([task.result() for task in tasks])

    async def _roll_out(self, stage: int, queues: Queues) -> list[FinishedEpisode]:
        simulators = self._training[stage]
        observations: list[Floats] = []
        actions: list[Actions] = []
        transitions: list[Transitions] = []
        finished: list[FinishedEpisode] = []
        for step in range(self._cfg.algorithm.rollout_steps):
            observations.append(simulators.observations)
            actions.append(await self._decide(stage, simulators.observations, queues))
            with self.worker_timer("interact"):
                transitions.append(simulators.step(actions[-1].actions))
            finished += [FinishedEpisode(step, float(total)) for total in transitions[-1].finished_returns]
        batch = stack_steps(observations, actions, transitions)
        for actor, rows in self._layout.actor_shares(self._rank, stage, len(observations[0])).items():
            await queues.experience.put(share_envs(batch, rows), key=(stage, self._rank, actor))
        await self._take_leave(stage, queues)
        return finished

    async def _run_episodes(self, stage: int, seeds: Sequence[int], queues: Queues) -> Floats:
        simulators = Simulators(self._cfg.env.id, seeds, restart=False)
        returns = np.zeros(len(seeds))
        try:
            while not simulators.finished.all():
                decided = await self._decide(stage, simulators.observations, queues)
                returns += simulators.step(decided.actions).rewards
        finally:
            simulators.close()
        await self._take_leave(stage, queues)
        return returns.astype(np.float32)

    async def _decide(self, stage: int, observations: Floats, queues: Queues) -> Actions:
        """Has the rollout workers decide on an action for each of ``[envs, observation]``."""
        shares = self._layout.rollout_shares(self._rank, len(observations))
        puts = [
            queues.observations.put(View(self._rank, observations[rows]), weight=1, key=(stage, peer))
            for peer, rows in shares.items()
        ]
        decided = [await queues.actions.get(key=(stage, self._rank, peer)) for peer in shares]
        for put in puts:
            await put
        return concatenate(decided)

    async def _take_leave(self, stage: int, queues: Queues) -> None:
        """Tells the rollout workers that this stage needs no more actions."""
        for peer in self._layout.rollout_shares(self._rank, 0):
            await queues.observations.put(View(self._rank, None), weight=1, key=(stage, peer))
