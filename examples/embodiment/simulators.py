"""Several simulators of one task, stepped together."""

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
    """``len(seeds)`` simulators of ``env_id`` in one process; none is a legal number of them.

    Actions are taken in [-1, 1] and stretched to the range of the task, or are choices counted from 0.

    Args:
        env_id: a gymnasium task with vectors as observations, and bounded vectors or choices as actions.
        seeds: one for each simulator, drawn on for all its episodes.
        reward_scale: rewards are multiplied by it; reported returns are not.
        restart: whether a simulator begins a new episode when one ends.  If not, it stands still from then
            on: its rewards are zero, and its entry in ``finished`` stays set.
        drawn: the first simulator can be looked at by ``frame``.

    Attributes:
        observations: ``[envs, observation]``, what to act on next.
        finished: ``[envs]`` bool, the simulator has come to the end of an episode and does not restart.
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
        # Only the one that is drawn is told so: a task need not know of drawing.
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
        """One step with ``actions [envs, action]``, or choices ``[envs]``."""
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
        """The first simulator, ``[height, width, 3]``; by its model's camera, which goes with it, if there is one."""
        task = self._envs[0].unwrapped
        if isinstance(task, MujocoEnv) and task.model.ncam:
            task.mujoco_renderer.camera_id = 0
        picture: NDArray[np.uint8] = self._envs[0].render()
        return picture

    def state(self) -> list[State | None]:
        """The state of each simulator in the middle of its episode; None where the task cannot be restored."""
        states = [state_of(env) for env in self._envs]
        for index, state in enumerate(states):
            if state is not None:
                state["observation"] = torch.from_numpy(self.observations[index].copy())
                state["return"], state["length"] = float(self._returns[index]), int(self._lengths[index])
        return states

    def restore(self, states: Sequence[State | None]) -> None:
        """Goes on from ``states``; simulators whose state is None begin an episode, as without it."""
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
