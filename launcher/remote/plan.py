"""Plan of a run's nodes from its hosts and options: choice, order by rank, a connector for each."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
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
    """One node to start.

    Attributes:
        rank: index in the list of hosts; a hidden node comes after all others.
        hidden: it only connects the driver's machine, which is not in the list.
    """

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
    """Return the nodes of a run, in the order of their ranks; at least one of them is on this machine.

    Raises:
        ConfigError: ``--nnodes`` exceeds the number of hosts, or a host's name is invalid.
    """
    hosts = by_node_rank(chosen_hosts(hosts, options))
    nodes = [PlannedNode(rank, host, _way(host, options)) for rank, host in enumerate(hosts)]
    if not any(node.is_here for node in nodes):
        here = Host("localhost", slots=0, source="the driver's own machine")
        nodes.append(PlannedNode(len(nodes), here, LocalConnector(driver_python(options)), hidden=True))
    return tuple(nodes)


def chosen_hosts(hosts: Sequence[Host], options: Options) -> tuple[Host, ...]:
    """Apply ``--local-nodes``, ``--fake-gpus`` and ``--nnodes`` to the hosts that were found."""
    if options.local_nodes is not None:
        here = Host("localhost", source=f"--local-nodes {options.local_nodes}")
        count = options.local_nodes
        hosts = [replace(here, name=f"local{number}") for number in range(count)] if count > 1 else [here]
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
    """Return the hosts in the order of ``env.RLINF_NODE_RANK=``, if all have it; else as they are listed.

    Raises:
        ConfigError: only some hosts have it, or the values are not 0 to n-1.
    """
    said = [(host, host.env[NODE_RANK].strip()) for host in hosts if NODE_RANK in host.env]
    if not said:
        return tuple(hosts)
    told = ", ".join(f"{host.name}: {rank}" for host, rank in said)
    if len(said) < len(hosts):
        silent = ", ".join(host.name for host in hosts if NODE_RANK not in host.env)
        raise ConfigError(
            f"{NODE_RANK} is set for some hosts ({told}), and not for {silent}\n"
            f"  fix: write env.{NODE_RANK}= for every host, or for none: then their order counts"
        )
    ranks = {rank: host for host, rank in said}
    if set(ranks) != {str(rank) for rank in range(len(hosts))}:
        raise ConfigError(
            f"{NODE_RANK} must be unique and run from 0 to {len(hosts) - 1}, got {told}\n"
            f"  fix: correct env.{NODE_RANK}=, or leave it out: then the order of the hosts counts"
        )
    return tuple(ranks[str(rank)] for rank in range(len(hosts)))


def driver_python(options: Options) -> str:
    """Return the interpreter of the script and of a hidden node: ``--python`` if it exists here, else this one."""
    return found_here(options.python) or sys.executable


def found_here(python: str | None) -> str | None:
    """Return the path of an interpreter on this machine; None if it does not exist."""
    return shutil.which(str(Path(python).expanduser())) if python else None


def _way(host: Host, options: Options) -> Connector:
    if host.slurm is not None and not host.slurm.is_here:
        return srun_connector(host, options, sys.executable)
    if options.local_nodes is not None or host.slurm is not None or is_here(host):
        python = host.python or options.python
        if python is not None and options.prologue is None:  # a prologue may put the named interpreter on the PATH
            python = found_here(python) or str(Path(python).expanduser())  # a missing one fails with this path
        return LocalConnector(python, prologue=options.prologue)
    return ssh_connector(host, options, sys.executable)
