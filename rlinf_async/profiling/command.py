"""Builds the profiler's command line around a worker's interpreter, report paths, and the worker's window plan."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rlinf_async.profiling.config import ProfileConfig
from rlinf_async.profiling.windows import WindowPlan

INTERPRETER: Final = "{python}"
"""Stands for the interpreter that a node's workers have, where only the node knows it."""

LOG_DIR: Final = "{log_dir}"
"""Stands for a node's own log folder."""


@dataclass(frozen=True)
class WrappedInterpreter:
    """The command to start in place of an interpreter; the interpreter's own arguments follow.

    Attributes:
        command: with the interpreter, where the tool does not find that by its environment.
        tool: what the node must have; empty where the interpreter runs bare.
        env: variables that the tool needs.
        directory: where its reports go.
    """

    command: tuple[str, ...]
    tool: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""


def directory_of(config: ProfileConfig) -> str:
    """Where the reports of a node's workers go."""
    return (config.output_dir or f"{LOG_DIR}/profiles").rstrip("/")


def report_name(worker_name: str) -> str:
    """What the names of a worker's reports begin with."""
    return f"rlinf_profile_{worker_name.replace(':', '_').replace('/', '_')}"


def wrap_interpreter(config: ProfileConfig, python: str, worker_name: str) -> WrappedInterpreter:
    """How a worker's interpreter is started.

    Args:
        python: the interpreter that it would have without a profiler, or ``INTERPRETER``.
        worker_name: for example ``"actor:0"``; in the names of reports, ``:`` becomes ``_``.
    """
    directory = directory_of(config)
    prefix = f"{directory}/{report_name(worker_name)}"
    variables = config.environment(prefix)
    words = config.command_prefix(f"{prefix}_%p")  # the tool puts the pid there
    if not words:
        return WrappedInterpreter((python,))
    if words[-1] == "--":  # an interpreter of the tool's own, which asks this variable for the real one
        env = {"PYTHON_EXECUTABLE": python, **variables}
        return WrappedInterpreter(tuple(words), words[0], env, directory)
    return WrappedInterpreter((*words, python), words[0], variables, directory)


def window_plan(config: ProfileConfig) -> WindowPlan:
    """What the workers themselves are told."""
    steps = None if config.steps is None else tuple(config.steps)
    return WindowPlan(config.backend, steps, directory_of(config), config.window_options())


def modify_profile_context(python_interpreter_path: str, worker_name: str, profiling_cfg: ProfileConfig) -> str:
    """RLinf's form of ``wrap_interpreter``: the command as a line for a shell; the interpreter's path alone where the
    worker is not profiled.
    """
    if not _profiles(profiling_cfg, worker_name):
        return shlex.quote(python_interpreter_path)
    return shlex.join(wrap_interpreter(profiling_cfg, python_interpreter_path, worker_name).command)


def get_profiling_env_vars_for_worker(worker_name: str, profiling_cfg: ProfileConfig) -> dict[str, str]:
    """The variables that the configuration has for the tool of a worker; none where it is not profiled."""
    if not _profiles(profiling_cfg, worker_name):
        return {}
    return profiling_cfg.environment(f"{directory_of(profiling_cfg)}/{report_name(worker_name)}")


def _profiles(config: ProfileConfig, worker_name: str) -> bool:
    """Whether a worker is profiled: ``actor:0:1`` may be of the group ``actor:0`` or descend from ``actor``."""
    parts = worker_name.split(":")
    return any(config.profiles_worker_group(":".join(parts[:end])) for end in range(1, len(parts) + 1))
