"""Builder of the profiler's command line around a worker's interpreter, report paths, and a worker's window plan."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rlinf_async.profiling.config import ProfileConfig
from rlinf_async.profiling.windows import WindowPlan

INTERPRETER: Final = "{python}"
"""Placeholder for the interpreter of a node's workers, which only the node knows."""

LOG_DIR: Final = "{log_dir}"
"""Placeholder for a node's log folder."""


@dataclass(frozen=True)
class WrappedInterpreter:
    """The command that replaces a worker's interpreter; the interpreter's own arguments follow it.

    Attributes:
        command: words of the command, including the interpreter unless the tool finds it in its environment.
        tool: executable that the node must have; empty if the interpreter runs without a tool.
        env: environment variables for the tool.
        directory: folder for its reports.
    """

    command: tuple[str, ...]
    tool: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""


def directory_of(config: ProfileConfig) -> str:
    """Return the folder for the reports of a node's workers."""
    return (config.output_dir or f"{LOG_DIR}/profiles").rstrip("/")


def report_name(worker_name: str) -> str:
    """Return the common prefix of the names of a worker's reports."""
    return f"rlinf_profile_{worker_name.replace(':', '_').replace('/', '_')}"


def wrap_interpreter(config: ProfileConfig, python: str, worker_name: str) -> WrappedInterpreter:
    """Return the command that starts a worker's interpreter under the profiler.

    Args:
        python: the worker's interpreter without a profiler, or ``INTERPRETER``.
        worker_name: name such as ``"actor:0"``; report names have ``_`` in place of ``:``.
    """
    directory = directory_of(config)
    prefix = f"{directory}/{report_name(worker_name)}"
    variables = config.environment(prefix)
    words = config.command_prefix(f"{prefix}_%p")  # the tool replaces %p by the pid
    if not words:
        return WrappedInterpreter((python,))
    if words[-1] == "--":  # the tool starts the interpreter in PYTHON_EXECUTABLE itself
        env = {"PYTHON_EXECUTABLE": python, **variables}
        return WrappedInterpreter(tuple(words), words[0], env, directory)
    return WrappedInterpreter((*words, python), words[0], variables, directory)


def window_plan(config: ProfileConfig) -> WindowPlan:
    """Return the part of the configuration that workers apply themselves."""
    steps = None if config.steps is None else tuple(config.steps)
    return WindowPlan(config.backend, steps, directory_of(config), config.window_options())


def modify_profile_context(python_interpreter_path: str, worker_name: str, profiling_cfg: ProfileConfig) -> str:
    """Return the command as a shell line, as RLinf does; the interpreter's path alone if the worker is not profiled."""
    if not _profiles(profiling_cfg, worker_name):
        return shlex.quote(python_interpreter_path)
    return shlex.join(wrap_interpreter(profiling_cfg, python_interpreter_path, worker_name).command)


def get_profiling_env_vars_for_worker(worker_name: str, profiling_cfg: ProfileConfig) -> dict[str, str]:
    """Return the environment variables of a worker's profiler; empty if the worker is not profiled."""
    if not _profiles(profiling_cfg, worker_name):
        return {}
    return profiling_cfg.environment(f"{directory_of(profiling_cfg)}/{report_name(worker_name)}")


def _profiles(config: ProfileConfig, worker_name: str) -> bool:
    # The worker actor:0:1 may belong to the group actor:0, or be a sub-worker of the group actor.
    parts = worker_name.split(":")
    return any(config.profiles_worker_group(":".join(parts[:end])) for end in range(1, len(parts) + 1))
