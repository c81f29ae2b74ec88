"""Worker group ``env``: steps simulators with the policy's actions, and sends the experience to the actor."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from configuration import Configuration
from decisions import Decisions, OwnDecisions, RolloutGroupDecisions
from film import Film, require_film
from inference import PolicyInference
from pipeline import Layout, Queues
from rollouts import Actions, Floats, TaskShape, Transitions, share_envs, stack_steps
from seeding import training_seeds
from simulators import Simulators

from rlinf_async import Worker, idempotent


@dataclass(frozen=True)
class FinishedEpisode:
    """An episode that ended in step ``step`` of a rollout, with its undiscounted, unscaled return and its length."""

    step: int
    total: float
    length: int


class EnvWorker(Worker):
    """Runs its share of ``env.total_num_envs`` simulators, in stages that step independently of each other.

    Rollouts and evaluations of one worker run one after the other, in the order of their calls; a call made ahead
    (``runner.mode: async``) starts when the simulators are free.
    """

    def __init__(self, cfg: Configuration) -> None:
        super().__init__()
        self._cfg = cfg
        self._turn = asyncio.Lock()
        self._inference: PolicyInference | None = None
        self._is_ready = False

    @idempotent
    def init_worker(self, step: int, layout: Layout, states: Sequence[Any] | None = None) -> TaskShape:
        """Build the simulators, and the policy if this worker does inference; start or restore episodes.

        Args:
            step: first training step of the run. It seeds the episodes, so a resumed run whose simulators could not be
                restored does not repeat the episodes that it has seen.
            layout: ranks to exchange with.
            states: states of all simulators of the run, from a checkpoint.
        """
        # The simulator warns about each robot model that it loads; once, in the log, is enough.
        mujoco.set_mju_user_warning(functools.cache(self.log_warning))
        env = self._cfg.env
        if self._cfg.runner.video and self._rank == 0:
            require_film(env.id)
        self._layout = layout
        share = env.total_num_envs // self._world_size
        own_range = slice(self._rank * share, (self._rank + 1) * share)
        seeds = training_seeds(self._cfg.runner.seed, step, env.total_num_envs)[own_range]
        self._training = [
            Simulators(env.id, stage.tolist(), reward_scale=env.reward_scale)
            for stage in np.array_split(seeds, layout.stages)
        ]
        if states is not None:
            restored = iter(states[own_range])
            for simulators in self._training:
                simulators.restore([next(restored) for _ in simulators.observations])
        shape = self._training[0].shape
        with_env = self._cfg.rollout.placement == "with_env"
        self._inference = PolicyInference(self._cfg, shape, self._rank) if with_env else None
        self._is_ready = True
        return shape

    async def is_ready(self) -> bool:
        """True once it is initialised; False again after a restart of its process."""
        return self._is_ready

    async def follow_again(self) -> None:
        """Follow an actor that was restarted."""
        if self._inference is not None:
            await self._inference.follow_again()

    async def interact(self, queues: Queues, step: int, version: int) -> list[FinishedEpisode]:
        """Make ``algorithm.rollout_steps`` steps with every simulator, and send the experience to the actor.

        Args:
            queues: channels of the run.
            step: training step of the rollout, which seeds random actions.
            version: oldest version of the weights to act with.

        Returns:
            The finished episodes.
        """
        async with self._turn:
            finished: list[FinishedEpisode] = []
            decisions: Decisions = RolloutGroupDecisions(queues, self._layout, self._rank)
            if self._inference is not None:
                await self._inference.wait_version(version)
                noise = [self._inference.generator(f"stage {stage}", step) for stage in range(self._layout.stages)]
                decisions = OwnDecisions(self._inference, noise)
            async with asyncio.TaskGroup() as stages:
                for stage in range(self._layout.stages):
                    stages.create_task(self._roll_out(stage, step, queues, decisions, finished))
            return finished

    async def evaluate(self, seeds: Sequence[int], queues: Queues, version: int, video: Path | None = None) -> Floats:
        """Run one episode per seed, each in its own simulator and without noise. Return ``[len(seeds)]``.

        Args:
            video: path of an MP4 of the episode; allowed only with a single seed.
        """
        async with self._turn:
            decisions: Decisions = RolloutGroupDecisions(queues, self._layout, self._rank)
            if self._inference is not None:
                await self._inference.wait_version(version)
                decisions = OwnDecisions(self._inference, None)
            async with asyncio.TaskGroup() as stages:
                tasks = [
                    stages.create_task(self._run_episodes(stage, share.tolist(), decisions, video))
                    for stage, share in enumerate(np.array_split(seeds, self._layout.stages))
                ]
            return np.concatenate([task.result() for task in tasks])

    async def simulator_states(self) -> list[Any]:
        """Return the simulators' part of a checkpoint: one entry each, None if the task cannot be restored."""
        async with self._turn:
            return [state for simulators in self._training for state in simulators.state()]

    async def _roll_out(
        self, stage: int, training_step: int, queues: Queues, decisions: Decisions, finished: list[FinishedEpisode]
    ) -> None:
        simulators = self._training[stage]
        observations: list[Floats] = []
        actions: list[Actions] = []
        transitions: list[Transitions] = []
        for step in range(self._cfg.algorithm.rollout_steps):
            observations.append(simulators.observations)
            actions.append(await decisions.decide(stage, simulators.observations))
            with self.worker_timer("interact"):
                result = simulators.step(actions[-1].actions)
            transitions.append(result)
            ended = zip(result.finished_returns.tolist(), result.finished_lengths.tolist(), strict=True)
            finished += [FinishedEpisode(step, total, length) for total, length in ended]
        batch = stack_steps(observations, actions, transitions)
        oldest = int(np.min([step.versions for step in actions]))
        for part, rows in self._layout.experience_parts(self._rank, stage, len(observations[0])).items():
            share, actor = (part, share_envs(batch, rows)), part // self._layout.parts_per_actor
            await queues.experience.put(share, version=oldest, group=training_step, key=actor)
        await decisions.end(stage)

    async def _run_episodes(self, stage: int, seeds: Sequence[int], decisions: Decisions, video: Path | None) -> Floats:
        simulators = Simulators(self._cfg.env.id, seeds, restart=False, drawn=video is not None)
        returns = np.zeros(len(seeds))
        try:
            with Film(video, simulators) if video and len(seeds) else contextlib.nullcontext() as film:
                while not simulators.finished.all():
                    decided = await decisions.decide(stage, simulators.observations)
                    returns += simulators.step(decided.actions).rewards
                    if film is not None:
                        film.add_frame()
        finally:
            simulators.close()
        await decisions.end(stage)
        return returns.astype(np.float32)
