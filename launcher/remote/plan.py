"""Plans the nodes of a run from its hosts and options: choice, order by rank, a connector for each."""

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
class Node:
    """One node to start.

    Attributes:
        rank: place in the list of hosts; a hidden node comes after all others.
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


def plan(hosts: Sequence[Host], options: Options) -> tuple[Node, ...]:
    """The nodes of a run, in the order of their ranks; at least one of them is on this machine.

    Raises:
        ConfigError: ``--nnodes`` asks for more hosts than there are; a host's name is none.
    """
    hosts = by_node_rank(chosen_hosts(hosts, options))
    nodes = [Node(rank, host, _way(host, options)) for rank, host in enumerate(hosts)]
    if not any(node.is_here for node in nodes):
        here = Host("localhost", slots=0, source="the driver's own machine")
        nodes.append(Node(len(nodes), here, LocalConnector(driver_python(options)), hidden=True))
    return tuple(nodes)


def chosen_hosts(hosts: Sequence[Host], options: Options) -> tuple[Host, ...]:
    """What ``--local-nodes``, ``--fake-gpus`` and ``--nnodes`` make of the hosts that were found."""
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
    """The hosts in the order that ``env.RLINF_NODE_RANK=`` says, where all say it; else as they are listed.

    Raises:
        ConfigError: only some say it, or what they say is not each of 0 to n-1 once.
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
    """The interpreter of the script, and of a node that only connects this machine: ``--python`` where that is here."""
    return found_here(options.python) or sys.executable


def found_here(python: str | None) -> str | None:
    """The path of an interpreter on this machine; None where it is not here."""
    return shutil.which(str(Path(python).expanduser())) if python else None


def _way(host: Host, options: Options) -> Connector:
    if host.slurm is not None and not host.slurm.is_here:
        return srun_connector(host, options, sys.executable)
    if options.local_nodes is not None or host.slurm is not None or is_here(host):
        python = host.python or options.python
        if python is not None and options.prologue is None:  # which may bring the interpreter that is named
            python = found_here(python) or str(Path(python).expanduser())  # fails by name where absent
        return LocalConnector(python, prologue=options.prologue)
    return ssh_connector(host, options, sys.executable)
