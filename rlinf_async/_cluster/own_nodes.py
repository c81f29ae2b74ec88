"""Node daemons on this machine for a ``Cluster`` without ``rlinf-launch``, and the number of fake GPUs."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rlinf_async._core import own_start
from rlinf_async._wire.credentials import RunAuthority
from rlinf_async._wire.lifeline import Lifeline
from rlinf_async._wire.mesh import start_nodes
from rlinf_async._wire.node_config import NodeConfig
from rlinf_async.errors import ConfigError, LaunchError

_FAKE_GPUS: Final = "RLINF_FAKE_GPUS"
MAX_FAKE_GPUS: Final = 1024


async def start_own_nodes(
    run: str,
    lifelines: list[Lifeline],
    *,
    count: int,
    log_dir: str | None,
    fake_gpus: int | None,
    timeout: float,
) -> tuple[str, list[str]]:
    """Start this machine's node, or several nodes that act as separate machines.

    Return the first node's socket, and notes for users.

    Args:
        lifelines: list to which each started node's lifeline is added; the caller must stop them, even after an error.
        timeout: seconds within which all nodes must be up.

    Raises:
        LaunchError: a node failed to start; the message contains its output.
    """
    authority = RunAuthority(run) if count > 1 else None
    command = [sys.executable, "-P", "-m", "rlinf_launcher.daemon"]
    environment = _environment(run)
    configs = []
    for node in range(count):
        name = "localhost" if count == 1 else f"local-{node}"
        line = await Lifeline.start(command, name=name, env=environment)
        lifelines.append(line)
        configs.append(
            NodeConfig(
                run=run,
                marker=line.marker,
                node=node,
                num_nodes=count,
                name=name,
                bind="127.0.0.1" if count > 1 else None,
                credentials=authority.issue(node) if authority is not None else None,
                log_dir=log_dir,
                fake_gpus=fake_gpus,
                python_flags=own_start.interpreter_flags(),
            )
        )
    peers = await start_nodes(lifelines, configs, timeout=timeout)
    return str(peers[0]["socket"]), list(dict.fromkeys(peer["note"] for peer in peers if peer["note"]))


def declared_gpus(asked: int | None, *, joins: bool, environ: Mapping[str, str]) -> int | None:
    """Return the number of GPUs that each node started here pretends to have; None to use the real GPUs.

    Args:
        asked: the script's argument; if None, the environment variable counts.
        joins: True if the cluster joins a run instead of starting nodes.

    Raises:
        ConfigError: the number is invalid, or the run's nodes have already been started.
    """
    if joins:
        if asked is not None:
            raise ConfigError(
                f"fake_gpus={asked} is for a cluster that starts its own node, and this one joins a run: "
                "declare the devices with `rlinf-launch --fake-gpus N`, or with fake_gpus=N in the hosts file"
            )
        return None
    said: Any = asked
    if asked is None and (text := environ.get(_FAKE_GPUS)):
        said = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else text
    if said is None or (type(said) is int and 0 <= said <= MAX_FAKE_GPUS):
        return said
    name = f"${_FAKE_GPUS}" if asked is None else "fake_gpus"
    raise ConfigError(f"{name} must be a number from 0 to {MAX_FAKE_GPUS}, got {said!r}")


def _environment(run: str) -> dict[str, str]:
    """Return an environment in which daemons find this ``rlinf_async``; raise LaunchError if it is not installed."""
    environment = {**os.environ, "RLINF_RUN_ID": run}
    home = Path(__file__).resolve().parents[2]
    launcher = importlib.util.find_spec("rlinf_launcher")
    if launcher is None or launcher.origin is None or Path(launcher.origin).resolve().parents[1] != home:
        raise LaunchError(f"rlinf_async is imported from {home}, which is not installed here: pip install -e {home}")
    found_by_path = any(os.path.realpath(entry or ".") == str(home) for entry in sys.path)  # Path.resolve may raise
    if found_by_path and home.name not in ("site-packages", "dist-packages"):
        path = [str(home), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(entry for entry in path if entry)
    return environment
