"""RLinf's API for the framework's environment variables: ``ClusterEnvVar``, full names, values with defaults."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Final

_PREFIX: Final = "RLINF_"


class ClusterEnvVar(StrEnum):
    """Names of variables, without the prefix that ``get_full_env_var_name`` adds."""

    CATCH_FAILURE = "CATCH_FAILURE"
    LOG_LEVEL = "LOG_LEVEL"
    TIMEOUT = "TIMEOUT"
    NODE_RANK = "NODE_RANK"
    COMM_NET_DEVICES = "COMM_NET_DEVICES"
    EXT_MODULE = "EXT_MODULE"
    NET_EMULATION = "NET_EMULATION"
    PATH_ENV_MERGE_MODE = "PATH_ENV_MERGE_MODE"
    CODE_WORKING_DIR = "CODE_WORKING_DIR"


_DEFAULTS: Final[dict[ClusterEnvVar, str]] = {
    ClusterEnvVar.CATCH_FAILURE: "0",
    ClusterEnvVar.LOG_LEVEL: "INFO",
    ClusterEnvVar.PATH_ENV_MERGE_MODE: "append",
}


def get_full_env_var_name(var: ClusterEnvVar) -> str:
    """Return the full name: ``RLINF_LOG_LEVEL`` for ``ClusterEnvVar.LOG_LEVEL``."""
    return _PREFIX + ClusterEnvVar(var)


def get_sys_env_var(env_var: ClusterEnvVar, default: str | None = None) -> str | None:
    """Return the variable's value in this process, or else ``default``, or else the framework's default."""
    said = os.environ.get(get_full_env_var_name(env_var))
    if said is not None:
        return said
    return _DEFAULTS.get(env_var) if default is None else default
