"""Enumerates a node's registered hardware (robots, cameras), in a subprocess because this may run user code.

The daemon runs ``python -m rlinf_async.hardware.node_inventory``, so that user code can neither block nor crash it.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rlinf_async._core.failures import text_of
from rlinf_async.errors import ConfigError
from rlinf_async.hardware.extension import load_extension
from rlinf_async.hardware.families import Accelerator
from rlinf_async.hardware.hardware import Hardware, HardwareConfig, HardwareInfo, HardwareResource, NodeHardwareConfig


def take_inventory(node_rank: int, sections: Sequence[Mapping[str, Any]]) -> tuple[HardwareResource, ...]:
    """Enumerate this machine's hardware of every kind registered in this process, except accelerators.

    Args:
        node_rank: rank of this machine's node.
        sections: the ``hardware`` sections of the cluster's configuration.

    Raises:
        ConfigError: a section names an unknown kind or field, or enumerating a kind failed.
    """
    configs: dict[str, list[HardwareConfig]] = {}
    for section in sections:
        read = NodeHardwareConfig.from_mapping(section)
        configs.setdefault(read.type, []).extend(read.configs)
    found = []
    for name, hardware in list(Hardware.policy_registry.items()):
        if name == Accelerator.HW_TYPE:
            continue
        try:
            resource = hardware.enumerate(node_rank, configs.get(name))
            _check_resource(name, resource)
        except BaseException as error:
            raise ConfigError(
                f"the search for hardware {name!r} failed: {type(error).__name__}: {text_of(error)}"
            ) from error
        if resource is not None and resource.count:
            found.append(resource)
    return tuple(found)


def _check_resource(name: str, resource: Any) -> None:
    is_of_kind = isinstance(resource, HardwareResource) and resource.type == name
    infos = resource.infos if is_of_kind and isinstance(resource.infos, list | tuple) else [None]
    if resource is not None and not all(isinstance(info, HardwareInfo) for info in infos):
        raise TypeError(
            f"enumerate() returns None or a HardwareResource({name!r}, (HardwareInfo(...), ...)), got {resource!r}"
        )


def main() -> None:
    """Read a JSON object ``{"node_rank", "sections", "sys_path"}`` from stdin, and write the answer as JSON to stdout.

    The answer's keys are ``resources`` (a hex-encoded pickle, because kinds have their own classes), ``warning`` and
    ``error``.
    """
    request = json.load(sys.stdin)
    stdout_fd = os.dup(1)
    os.dup2(2, 1)  # the answer on stdout must not contain user code's output
    sys.path[:] = [*request["sys_path"], *(entry for entry in sys.path if entry not in request["sys_path"])]
    reply = {"resources": "", "warning": load_extension(os.environ), "error": ""}
    try:
        reply["resources"] = pickle.dumps(take_inventory(request["node_rank"], request["sections"])).hex()
    except Exception as error:
        reply["error"] = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {text_of(error)}"
    with open(stdout_fd, "w") as stream:
        json.dump(reply, stream)


if __name__ == "__main__":
    main()
    atexit._run_exitfuncs()
    os._exit(0)  # threads that a robot's library has left would keep this process, and the daemon waits for its end
