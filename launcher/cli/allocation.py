"""Finds the hosts of a run: ``--hosts``, ``$RLINF_HOSTS``, Slurm, PBS, LSF, MPI and job hosts files, or localhost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from rlinf_async.errors import ConfigError

from ..remote.host import Host
from .hosts_file import parse_list, read_file, read_hosts

JOB_HOSTFILE = Path("/job/hostfile")
"""Where DeepSpeed's images keep their hosts."""


def find_hosts(
    argument: str | None, environ: Mapping[str, str], stdin: TextIO, allow_duplicates: bool = False
) -> tuple[tuple[Host, ...], str]:
    """The hosts of this run, and in words where they came from.

    The first of these that is there counts: ``--hosts`` (a file, ``-``, or a list), ``$RLINF_HOSTS`` (the
    same), the allocation of Slurm, PBS or LSF, the hosts file of an MPI operator, ``/job/hostfile`` (the words
    then say how to do without it), this machine.

    Args:
        argument: what ``--hosts`` says; None where it is not given.
        environ: variables; an empty one counts as unset.

    Raises:
        ConfigError: the source that counts cannot be read, or has a bad line.
    """
    if argument is not None:
        return read_hosts(argument, stdin, "--hosts", allow_duplicates), f"--hosts {argument}"
    if value := environ.get("RLINF_HOSTS"):
        return read_hosts(value, stdin, "$RLINF_HOSTS", allow_duplicates), f"$RLINF_HOSTS ({value})"
    for name in ("SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if value := environ.get(name):
            return _slurm(name, value, environ), f"Slurm (${name})"
    for system, name in (("PBS", "PBS_NODEFILE"), ("LSF", "LSB_DJOB_HOSTFILE")):
        if value := environ.get(name):
            # A line per slot.  A host that has one line keeps its slots open: one task per node is how jobs
            # ask for whole GPU machines.
            return read_file(Path(value), allow_duplicates=True, named_by=f"${name}"), f"{system} (${name})"
    name = "OMPI_MCA_orte_default_hostfile"
    if value := environ.get(name):
        return read_file(Path(value), allow_duplicates, named_by=f"${name}"), f"an MPI operator (${name})"
    if JOB_HOSTFILE.is_file():
        notice = f"{JOB_HOSTFILE}, which lies on this machine (--hosts localhost runs without it)"
        return read_file(JOB_HOSTFILE, allow_duplicates), notice
    return (Host("localhost", source="default"),), "this machine, for want of any other"


def _slurm(name: str, nodes: str, environ: Mapping[str, str]) -> tuple[Host, ...]:
    """Slurm's list, with as many slots on each node as there are GPUs of the job on this one."""
    hosts = parse_list(nodes, f"${name}")
    text = environ.get("SLURM_GPUS_ON_NODE", "")
    if not text:
        return hosts
    if not text.isdecimal():
        raise ConfigError(
            f"$SLURM_GPUS_ON_NODE is {text!r}, not a number\n  fix: unset it, or name the hosts with --hosts"
        )
    return tuple(replace(host, slots=int(text) or None) for host in hosts)
