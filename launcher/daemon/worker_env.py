"""``WorkerEnv``: the environment of a group's workers on a node: variables, interpreter and import paths."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlinf_async.configuration.env_merge import get_path_env_merge_mode, merge_worker_env_vars
from rlinf_async.errors import LaunchError
from rlinf_async.hardware import get_family

_NETWORK: Final = "RLINF_COMM_NET_DEVICES"


@dataclass(frozen=True)
class WorkerEnv:
    """Environment shared by all workers of one spawn request.

    Attributes:
        own: the node's variables with the launching script's changes.
        special: the group's additional variables; path lists include the node's.
        python: the group's own interpreter; None to use the node's.
        paths: folders in the group's own ``PYTHONPATH``, before the script's.
    """

    own: Mapping[str, str]
    special: Mapping[str, str]
    python: str | None
    paths: tuple[str, ...]

    def variables(self, worker: Mapping[str, str]) -> dict[str, str]:
        """Return all variables of one worker, including its own variables ``worker``."""
        found = {**self.own, **worker, **self.special}
        if network := found.get(_NETWORK):
            # A variable set for a particular library keeps its value.
            found.setdefault("GLOO_SOCKET_IFNAME", network)
            family = get_family(worker.get("ACCELERATOR_TYPE", ""))
            if family is not None:
                found.setdefault(family.nic_variable, network)
        return found


def prepare(
    own: Mapping[str, str],
    env: Mapping[str, str],
    node_env: Mapping[str, str],
    python: str | None,
    node: str,
    script_env: Mapping[bytes, bytes | None],
) -> WorkerEnv:
    """Return the environment for one request's workers; raise LaunchError if the node lacks ``python``.

    The group's ``env`` overrides everything else.  Path lists of ``node_env``, from the configuration, extend the
    node's; path lists of ``script_env``, the launching script's changes (None if deleted), precede the node's.
    """
    own = _changed(own, script_env)
    everything = merge_worker_env_vars(own, node_env, get_path_env_merge_mode({**own, **node_env}))
    special = {name: everything[name] for name in node_env} | dict(env)
    first = env.get("PYTHONPATH", node_env.get("PYTHONPATH", ""))
    return WorkerEnv(own, special, _interpreter(python, node), tuple(filter(None, first.split(os.pathsep))))


def _changed(own: Mapping[str, str], script_env: Mapping[bytes, bytes | None]) -> dict[str, str]:
    changes = {os.fsdecode(name): None if value is None else os.fsdecode(value) for name, value in script_env.items()}
    # A path list with the node's entries keeps the node's order, because another order would need another template.
    kept = {name: value for name, value in changes.items() if value is not None and value != own.get(name)}
    merged = merge_worker_env_vars(own, kept, get_path_env_merge_mode({**own, **kept}))
    return {name: value for name, value in merged.items() if changes.get(name, "") is not None}


def _interpreter(python: str | None, node: str) -> str | None:
    if python is None:
        return None
    path = Path(python).expanduser()
    if not os.access(path, os.X_OK) or path.is_dir():
        raise LaunchError(
            f"python_interpreter_path {python!r} is no program on {node}: correct it, or install it there"
        )
    return str(path)
