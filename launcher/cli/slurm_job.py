"""The nodes of the launcher's own Slurm job: names, components and GPUs, from its variables and ``scontrol``."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from rlinf_async.errors import ConfigError

from ..remote.host import Host, SlurmNode
from .host_entry import GROUPS_OF_EVERY_RUN
from .hosts_file import parse_list

_SCONTROL_TIMEOUT_S: Final = 10.0

_ON_NODES: Final = re.compile(r"^\s*Nodes=(?P<nodes>\S+) .*\bGRES=(?P<gres>\S*)", re.MULTILINE)
_GPUS: Final = re.compile(r"(?:^|,)gpu(?::[^:,]+)?:([0-9]{1,6})(?=,|$)", re.ASCII)
_COUNT: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
_LABEL: Final = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.\-]*", re.ASCII)


def show_job(job: str) -> str:
    """Return ``scontrol``'s description of a job; empty if scontrol fails or times out."""
    try:
        command = ["scontrol", "show", "job", "-d", job]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_SCONTROL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def slurm_hosts(environ: Mapping[str, str], show: Callable[[str], str] = show_job) -> tuple[Host, ...]:
    """Return the nodes of the job, in order; an empty tuple outside a job.  Raises ConfigError for malformed variables.

    A node gets as many slots as the job has GPUs on it, according to `scontrol`; if scontrol fails, as many as this
    node has. In a heterogeneous job, nodes are labelled with their component: ``het0``, and its job name if unique.
    """
    job = environ.get("SLURM_JOB_ID")
    hosts: dict[str, Host] = {}
    for component, name, nodes, labels in _components(environ):
        for host in parse_list(nodes, f"${name}"):
            if host.name in hosts:
                raise ConfigError(
                    f"${name}: {host.name!r} is in another component of the job as well, and would be two nodes\n"
                    "  fix: ask for whole nodes (sbatch --exclusive), or for other ones in each component"
                )
            is_here = environ.get("SLURMD_NODENAME") == host.name
            slurm = SlurmNode(is_here=is_here, component=component) if job else None
            hosts[host.name] = replace(host, labels=labels, slurm=slurm)
    found = _gpus_by_node(show(job)) if job and hosts else {}
    if not found:
        return tuple(replace(host, slots=_count(environ, "SLURM_GPUS_ON_NODE") or None) for host in hosts.values())
    return tuple(
        replace(host, slots=found[name] or None, slurm=host.slurm and replace(host.slurm, gpus=found[name]))
        for name, host in hosts.items()
    )


def _components(environ: Mapping[str, str]) -> list[tuple[int | None, str, str, tuple[str, ...]]]:
    """Return ``(number, variable, nodes, labels)`` of each component; the number is None in a plain job."""
    size = _count(environ, "SLURM_HET_SIZE")
    if size and environ.get("SLURM_JOB_NODELIST_HET_GROUP_0"):
        numbers = range(size)
        names = Counter(environ.get(f"SLURM_JOB_NAME_HET_GROUP_{number}", "") for number in numbers)
        found: list[tuple[int | None, str, str, tuple[str, ...]]] = []
        for number in numbers:
            variable = f"SLURM_JOB_NODELIST_HET_GROUP_{number}"
            own = environ.get(f"SLURM_JOB_NAME_HET_GROUP_{number}", "")
            is_label = names[own] == 1 and own not in GROUPS_OF_EVERY_RUN and _LABEL.fullmatch(own)
            labels = dict.fromkeys([f"het{number}", *([own] if is_label else [])])
            found.append((number, variable, environ.get(variable, ""), tuple(labels)))
        return found
    for variable in ("SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if nodes := environ.get(variable):
            return [(None, variable, nodes, ())]
    return []


def _gpus_by_node(text: str) -> Counter[str]:
    """Return the number of the job's GPUs on each node, from ``scontrol show job -d``; empty if it reports none."""
    # There is one line per set of identical nodes: Nodes=n[0-1] CPU_IDs=0-1 Mem=0 GRES=gpu:a100:2(IDX:0-1)
    found: Counter[str] = Counter()
    for match in _ON_NODES.finditer(text):
        gres = re.sub(r"\([^)]*\)", "", match["gres"])
        count = sum(int(number) for number in _GPUS.findall(gres))
        found.update({host.name: count for host in parse_list(match["nodes"], "scontrol")})
    return found


def _count(environ: Mapping[str, str], variable: str) -> int:
    text = environ.get(variable) or "0"
    if not _COUNT.fullmatch(text):
        raise ConfigError(f"${variable} is {text!r}, not a number\n  fix: unset it, or name the hosts with --hosts")
    return int(text)
