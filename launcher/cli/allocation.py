"""Discovery of a run's hosts from ``--hosts``, ``$RLINF_HOSTS``, Slurm, PBS, LSF or MPI, and how to reach them."""

from __future__ import annotations

import os.path
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from rlinf_async.errors import ConfigError

from ..remote.host import Host
from .hosts_file import read_file, read_hosts
from .slurm_job import slurm_hosts

JOB_HOSTFILE = Path("/job/hostfile")  # the hosts file of DeepSpeed's container images


def find_hosts(
    argument: str | None, environ: Mapping[str, str], stdin: TextIO, allow_duplicates: bool = False
) -> tuple[tuple[Host, ...], str]:
    """Return the hosts of this run, and a description of their source.

    The first source that is set wins: ``--hosts`` (a file, ``-``, or a list), ``$RLINF_HOSTS`` (the same), the
    allocation of Slurm, PBS or LSF, the hosts file of an MPI operator, ``/job/hostfile`` (whose description says how to
    ignore it), this machine.  An empty variable counts as unset.  Raises ConfigError for an invalid source.
    """
    if argument is not None:
        return read_hosts(argument, stdin, "--hosts", allow_duplicates), f"--hosts {argument}"
    if value := environ.get("RLINF_HOSTS"):
        return read_hosts(value, stdin, "$RLINF_HOSTS", allow_duplicates), f"$RLINF_HOSTS ({value})"
    if hosts := slurm_hosts(environ):
        return hosts, f"Slurm ({hosts[0].source.partition(':')[0]})"
    for system, name in (("PBS", "PBS_NODEFILE"), ("LSF", "LSB_DJOB_HOSTFILE")):
        if value := environ.get(name):
            # The file has one line per slot. A host with one line has no slot count, because jobs that ask for whole
            # GPU machines have one task per node.
            return read_file(Path(value), allow_duplicates=True, named_by=f"${name}"), f"{system} (${name})"
    name = "OMPI_MCA_orte_default_hostfile"
    if value := environ.get(name):
        return read_file(Path(value), allow_duplicates, named_by=f"${name}"), f"an MPI operator (${name})"
    if os.path.isfile(JOB_HOSTFILE):
        notice = f"{JOB_HOSTFILE}, which lies on this machine (--hosts localhost runs without it)"
        return read_file(JOB_HOSTFILE, allow_duplicates), notice
    return (Host("localhost", source="default"),), "this machine, for want of any other"


def with_launcher(hosts: tuple[Host, ...], launcher: str, environ: Mapping[str, str]) -> tuple[Host, ...]:
    """Return the hosts; each host that the launcher reaches with srun gets its place in this Slurm job.

    ``"auto"`` chooses srun if all hosts are nodes of the current job and srun is installed.  Raises ConfigError if
    ``"srun"`` cannot reach a host, or if every task of a step would start the same run.
    """
    ssh = tuple(replace(host, slurm=None) for host in hosts)
    if launcher == "ssh" or all(host.is_local for host in hosts):
        return ssh
    job = environ.get("SLURM_JOB_ID")
    nodes = {node.name: node for node in slurm_hosts(environ)} if job and any(not host.slurm for host in hosts) else {}
    reached = tuple(host if host.slurm or host.is_local else _in_job(host, nodes) for host in hosts)
    missing = [host for host in reached if not host.slurm and not host.is_local]
    if launcher == "auto" and (missing or not shutil.which("srun")):
        return ssh
    if missing:
        known = (
            f"none of this job's nodes ({', '.join(nodes)})" if job else "no node of a job: $SLURM_JOB_ID is not set"
        )
        raise ConfigError(
            f"--launcher srun: {missing[0].name!r} ({missing[0].source}) is {known}, or needs ssh for its user or "
            "port\n  fix: run inside of sbatch or salloc without --hosts, or --launcher ssh"
        )
    if not shutil.which("srun"):
        raise ConfigError("--launcher srun: there is no srun on the PATH\n  fix: add it, or --launcher ssh")
    if (tasks := environ.get("SLURM_STEP_NUM_TASKS", "1")) != "1":
        raise ConfigError(
            f"each of the {tasks} tasks of this step ($SLURM_STEP_NUM_TASKS) starts rlinf-launch, which starts all "
            "nodes\n  fix: call rlinf-launch once, without srun before it"
        )
    return reached


def _in_job(host: Host, nodes: Mapping[str, Host]) -> Host:
    """Return the host with its place in the job; unchanged if it has no place, or needs ssh for its user or port."""
    node = nodes.get(host.name)
    return replace(host, slurm=node.slurm) if node is not None and host.user is None and host.port is None else host
