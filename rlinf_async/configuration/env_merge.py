"""Merges two sets of a worker's environment variables; a setting selects whether PATH-like lists are joined."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum

from rlinf_async.configuration.section import did_you_mean
from rlinf_async.errors import ConfigError

_PATH_LIKE = frozenset(
    {"PYTHONPATH", "LD_LIBRARY_PATH", "PATH", "LIBRARY_PATH", "CMAKE_PREFIX_PATH", "PKG_CONFIG_PATH", "CPATH"}
)
"""Names of variables that hold a list of folders, to which both sources may contribute."""

PATH_ENV_MERGE_MODE = "RLINF_PATH_ENV_MERGE_MODE"


class PathEnvMergeMode(Enum):
    """Merge mode for a variable that holds a list of folders and is set by both sources."""

    APPEND = "append"
    """Folders of the later source, followed by the earlier source's."""
    OVERRIDE = "override"
    """Folders of the later source only."""


def get_path_env_merge_mode(env_vars: Mapping[str, str]) -> PathEnvMergeMode:
    """Return the mode selected by ``RLINF_PATH_ENV_MERGE_MODE``, by default ``APPEND``.

    Raises:
        ConfigError: the variable names an unknown mode.
    """
    mode_name = env_vars.get(PATH_ENV_MERGE_MODE, "").strip().lower()
    if not mode_name:
        return PathEnvMergeMode.APPEND
    modes = [mode.value for mode in PathEnvMergeMode]
    if mode_name not in modes:
        raise ConfigError(
            f"{PATH_ENV_MERGE_MODE}={env_vars[PATH_ENV_MERGE_MODE]!r} is no mode{did_you_mean(mode_name, modes)}: "
            f"write {' or '.join(modes)}"
        )
    return PathEnvMergeMode(mode_name)


def merge_worker_env_vars(
    base_env_vars: Mapping[str, str],
    incoming_env_vars: Mapping[str, str],
    mode: PathEnvMergeMode = PathEnvMergeMode.APPEND,
) -> dict[str, str]:
    """Return the base overlaid with the incoming variables; in append mode, lists of folders are joined.

    Example:
        >>> merge_worker_env_vars({"PATH": "/bin:/usr/bin"}, {"PATH": "/opt/bin:/bin"})
        {'PATH': '/opt/bin:/bin:/usr/bin'}
    """
    merged = dict(base_env_vars)
    for name, value in incoming_env_vars.items():
        if name in _PATH_LIKE and mode is PathEnvMergeMode.APPEND:
            value = merge_path_like(value, merged.get(name, ""))
        merged[name] = value
    return merged


def merge_path_like(first: str, then: str) -> str:
    """Join two lists of folders; each folder keeps its first position, and empty entries are dropped."""
    folders = [*first.split(os.pathsep), *then.split(os.pathsep)]
    return os.pathsep.join(dict.fromkeys(folder for folder in folders if folder))
