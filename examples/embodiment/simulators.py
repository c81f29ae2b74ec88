"""Several simulators of one task that step together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.mujoco import MujocoEnv
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from rollouts import Choices, Floats, TaskShape, Transitions
from simulator_state import State, restore_state, state_of


class Simulators:
    """``len(seeds)`` simulators of ``env_id`` in one process; there may be none.

    Actions are in [-1, 1] and scaled to the range of the task, or are choices numbered from 0.

    Args:
        env_id: a gymnasium task with vector observations, and bounded vectors or choices as actions.
        seeds: one per simulator, for all of its episodes.
        reward_scale: factor for rewards; reported returns are unscaled.
        restart: True if a simulator starts a new episode when one ends. If False, it stops: its rewards are zero, and
            its entry in ``finished`` stays set.
        drawn: True if ``frame`` can render the first simulator.

    Attributes:
        observations: ``[envs, observation]``, input of the next actions.
        finished: ``[envs]`` bool, True for simulators that ended an episode and do not restart.
    """

    def __init__(
        self,
        env_id: str,
        seeds: Sequence[int],
        *,
        reward_scale: float = 1.0,
        restart: bool = True,
        drawn: bool = False,
    ) -> None:
        # Only the rendered simulator gets the argument: a task need not know about rendering.
        drawings: list[dict[str, Any]] = [
            {"render_mode": "rgb_array"} if drawn and not index else {} for index in range(len(seeds))
        ]
        self._envs = [gymnasium.make(env_id, disable_env_checker=True, **drawing) for drawing in drawings]
        self._restart = restart
        self._reward_scale = reward_scale
        self._returns = np.zeros(len(seeds))
        self._lengths = np.zeros(len(seeds), dtype=np.int64)
        self.shape, self._actions = _task(env_id)
        self.finished = np.zeros(len(seeds), dtype=bool)
        self.observations = np.zeros((len(seeds), self.shape.observation_size), dtype=np.float32)
        for index, (env, seed) in enumerate(zip(self._envs, seeds, strict=True)):
            self.observations[index], _ = env.reset(seed=int(seed))

    def step(self, actions: Floats | Choices) -> Transitions:
        """Make one step with ``actions [envs, action]``, or choices ``[envs]``."""
        envs = len(self._envs)
        taken = self._in_units_of_the_task(actions)
        rewards = np.zeros(envs, dtype=np.float32)
        terminated = np.zeros(envs, dtype=bool)
        truncated = np.zeros(envs, dtype=bool)
        next_observations = self.observations.copy()
        observations = self.observations.copy()
        finished: list[tuple[float, int]] = []
        for index, env in enumerate(self._envs):
            if self.finished[index]:
                continue
            next_observations[index], reward, terminated[index], truncated[index], _ = env.step(taken[index])
            observations[index] = next_observations[index]
            rewards[index] = float(reward) * self._reward_scale
            self._returns[index] += float(reward)
            self._lengths[index] += 1
            if terminated[index] or truncated[index]:
                finished.append((self._returns[index], self._lengths[index]))
                self._returns[index] = self._lengths[index] = 0
                if self._restart:
                    observations[index], _ = env.reset()
                else:
                    self.finished[index] = True
        self.observations = observations
        return Transitions(
            next_observations=next_observations,
            observations=observations,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            finished_returns=np.array([total for total, _ in finished], dtype=np.float32),
            finished_lengths=np.array([length for _, length in finished], dtype=np.int64),
        )

    def _in_units_of_the_task(self, actions: Floats | Choices) -> Any:
        if isinstance(self._actions, Discrete):
            return [int(self._actions.start + choice) for choice in actions]
        low, high = (bound.astype(np.float32) for bound in (self._actions.low, self._actions.high))
        return low + (np.clip(actions, -1.0, 1.0) + 1.0) * 0.5 * (high - low)

    @property
    def frames_per_second(self) -> int:
        return int(self._envs[0].metadata["render_fps"])

    def frame(self) -> NDArray[np.uint8]:
        """Render the first simulator, ``[height, width, 3]``, by its model's first camera if there is one."""
        task = self._envs[0].unwrapped
        if isinstance(task, MujocoEnv) and task.model.ncam:
            task.mujoco_renderer.camera_id = 0
        picture: NDArray[np.uint8] = self._envs[0].render()
        return picture

    def state(self) -> list[State | None]:
        """Return the state of each simulator in the middle of its episode; None if the task cannot be restored."""
        states = [state_of(env) for env in self._envs]
        for index, state in enumerate(states):
            if state is not None:
                state["observation"] = torch.from_numpy(self.observations[index].copy())
                state["return"], state["length"] = float(self._returns[index]), int(self._lengths[index])
        return states

    def restore(self, states: Sequence[State | None]) -> None:
        """Continue from ``states``; simulators with the state None start an episode."""
        self.observations = self.observations.copy()
        for index, (env, state) in enumerate(zip(self._envs, states, strict=True)):
            if state is not None:
                restore_state(env, state)
                self.observations[index] = state["observation"].numpy()
                self._returns[index], self._lengths[index] = state["return"], state["length"]

    def close(self) -> None:
        for env in self._envs:
            env.close()


def _task(env_id: str) -> tuple[TaskShape, Box | Discrete]:
    env = gymnasium.make(env_id, disable_env_checker=True)
    try:
        states, actions = env.observation_space, env.action_space
        if isinstance(states, Box) and len(states.shape) == 1:
            if isinstance(actions, Discrete):
                return TaskShape(states.shape[0], int(actions.n), discrete=True), actions
            if isinstance(actions, Box) and len(actions.shape) == 1 and actions.is_bounded():
                return TaskShape(states.shape[0], actions.shape[0]), actions
        raise ValueError(
            f"env.id: {env_id} has observations {states} and actions {actions}; "
            "this example needs vectors, and as actions bounded vectors or a Discrete"
        )
    finally:
        env.close()
