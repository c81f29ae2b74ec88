"""Complete state of a MuJoCo simulator, to the last bit: a restored episode continues as it would have."""

from __future__ import annotations

from typing import Any

import gymnasium
import mujoco
import numpy as np
import torch
from gymnasium.envs.mujoco import MujocoEnv
from gymnasium.wrappers import TimeLimit

_SPEC = mujoco.mjtState.mjSTATE_INTEGRATION
_POSITIONS = ("xpos", "xipos", "xquat", "ximat", "cvel", "cinert", "cfrc_ext", "subtree_com", "site_xpos", "geom_xpos")
"""Derived quantities that rewards and observations read; after a step they are one substep behind."""

State = dict[str, Any]
"""Tensors, numbers and strings, so that loading a checkpoint runs no code."""


def state_of(env: gymnasium.Env[Any, Any]) -> State | None:
    """Return the state of ``env``; None for a task of another simulator."""
    task = env.unwrapped
    if not isinstance(task, MujocoEnv):
        return None
    integration = np.empty(mujoco.mj_stateSize(task.model, _SPEC))
    mujoco.mj_getState(task.model, task.data, integration, _SPEC)
    return {
        "integration": torch.from_numpy(integration),
        "derived": {name: torch.from_numpy(np.array(getattr(task.data, name))) for name in _POSITIONS},
        "elapsed": _time_limit(env)._elapsed_steps,
        "random": _as_text(task.np_random.bit_generator.state),
    }


def restore_state(env: gymnasium.Env[Any, Any], state: State) -> None:
    """Put ``env``, which has been reset, into ``state``."""
    task = env.unwrapped
    assert isinstance(task, MujocoEnv)
    integration = state["integration"].numpy()
    mujoco.mj_setState(task.model, task.data, integration, _SPEC)
    mujoco.mj_forward(task.model, task.data)
    # Repeated, because the forward pass above has changed the solver's warm start.
    mujoco.mj_setState(task.model, task.data, integration, _SPEC)
    for name, values in state["derived"].items():
        getattr(task.data, name)[:] = values.numpy()
    _time_limit(env)._elapsed_steps = state["elapsed"]
    task.np_random.bit_generator.state = _as_numbers(state["random"])


def _time_limit(env: gymnasium.Env[Any, Any]) -> Any:
    """Return the wrapper that counts an episode's steps."""
    while not isinstance(env, TimeLimit):
        assert isinstance(env, gymnasium.Wrapper), "the task has no time limit"
        env = env.env
    return env


def _as_text(state: Any) -> Any:
    """Return a bit generator's state with its integers, of up to 128 bits, as text."""
    if isinstance(state, dict):
        return {key: _as_text(value) for key, value in state.items()}
    return str(state)


def _as_numbers(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _as_numbers(value) for key, value in state.items()}
    return int(state) if state.isdecimal() else state
