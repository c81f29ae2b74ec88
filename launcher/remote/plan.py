"""Plans a run's nodes from its hosts and options: the chosen hosts, in rank order, each with a connector."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rlinf_async.errors import ConfigError

from ..options import Options
from .connector import Connector
from .host import Host
from .local import LocalConnector, is_here
from .srun import srun_connector
from .ssh import ssh_connector

NODE_RANK: Final = "RLINF_NODE_RANK"


@dataclass(frozen=True)
class PlannedNode:
    """One node to start; a ``hidden`` node, unlisted and last, only connects the driver's machine."""

    rank: int
    host: Host
    connector: Connector
    hidden: bool = False

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def is_here(self) -> bool:
        return self.connector.is_here


def plan(hosts: Sequence[Host], options: Options) -> tuple[PlannedNode, ...]:
    """Return a run's nodes in rank order, at least one on this machine.  Raises ConfigError if hosts are lacking."""
    hosts = by_node_rank(chosen_hosts(hosts, options))
    nodes = [PlannedNode(rank, host, _way(host, options)) for rank, host in enumerate(hosts)]
    if not any(node.is_here for node in nodes):
        hidden_host = Host("localhost", slots=0, source="the driver's own machine")
        nodes.append(PlannedNode(len(nodes), hidden_host, LocalConnector(driver_python(options)), hidden=True))
    return tuple(nodes)


def chosen_hosts(hosts: Sequence[Host], options: Options) -> tuple[Host, ...]:
    """Apply ``--local-nodes``, ``--fake-gpus`` and ``--nnodes`` to the hosts found."""
    if options.local_nodes is not None:
        local_host = Host("localhost", source=f"--local-nodes {options.local_nodes}")
        count = options.local_nodes
        hosts = [replace(local_host, name=f"local{number}") for number in range(count)] if count > 1 else [local_host]
    if options.fake_gpus is not None:
        hosts = [
            replace(host, fake_gpus=options.fake_gpus) if host.gpus is None and host.fake_gpus is None else host
            for host in hosts
        ]
    if options.nnodes is None:
        return tuple(hosts)
    if options.nnodes > len(hosts):
        raise ConfigError(
            f"--nnodes {options.nnodes}, but there are {len(hosts)} hosts: {', '.join(host.name for host in hosts)}\n"
            f"  fix: name more hosts, or --nnodes {len(hosts)}"
        )
    return tuple(hosts[: options.nnodes])


def by_node_rank(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Return the hosts ordered by ``env.RLINF_NODE_RANK=``, or as listed.  Raises ConfigError if only some set it."""
    ranked = [(host, host.env[NODE_RANK].strip()) for host in hosts if NODE_RANK in host.env]
    if not ranked:
        return tuple(hosts)
    listing = ", ".join(f"{host.name}: {rank}" for host, rank in ranked)
    if len(ranked) < len(hosts):
        silent = ", ".join(host.name for host in hosts if NODE_RANK not in host.env)
        raise ConfigError(
            f"{NODE_RANK} is set for some hosts ({listing}), and not for {silent}\n"
            f"  fix: write env.{NODE_RANK}= for every host, or for none: then their order counts"
        )
    ranks = {rank: host for host, rank in ranked}
    if set(ranks) != {str(rank) for rank in range(len(hosts))}:
        raise ConfigError(
            f"{NODE_RANK} must be unique and run from 0 to {len(hosts) - 1}, got {listing}\n"
            f"  fix: correct env.{NODE_RANK}=, or leave it out: then the order of the hosts counts"
        )
    return tuple(ranks[str(rank)] for rank in range(len(hosts)))


def driver_python(options: Options) -> str:
    """Return the interpreter for the script and a hidden node: ``--python`` if it exists here, else this one."""
    return found_here(options.python) or sys.executable


def found_here(python: str | None) -> str | None:
    """Return the path of an interpreter on this machine; None if it does not exist."""
    return shutil.which(os.path.expanduser(python)) if python else None  # noqa: PTH111  # Path's raises without a home


def _way(host: Host, options: Options) -> Connector:
    if host.slurm is not None and not host.slurm.is_here:
        return srun_connector(host, options, sys.executable)
    if options.local_nodes is not None or host.slurm is not None or is_here(host):
        python = host.python or options.python
        if python is not None and options.prologue is None:  # a prologue may put the named interpreter on the PATH
            # If the interpreter is not found, the error names this path.
            python = found_here(python) or os.path.expanduser(python)  # noqa: PTH111
        return LocalConnector(python, prologue=options.prologue)
    return ssh_connector(host, options, sys.executable)
