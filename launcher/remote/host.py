"""``Host``: a machine of a run, with its name, address, slots, GPUs, labels, variables and place in a Slurm job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .exported_env import shown

MAX_FAKE_GPUS = 1024

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class SlurmNode:
    """A node of a Slurm allocation, which ``srun`` reaches by its name in the allocation.

    Attributes:
        is_here: the launcher itself runs on this node, so no srun is needed.
        component: number after ``--het-group`` in a heterogeneous job.
        gpus: the job's GPUs on the node; None if unknown.
    """

    is_here: bool = False
    component: int | None = None
    gpus: int | None = None


@dataclass(frozen=True)
class Host:
    """One machine of a run.

    Attributes:
        name: argument for ssh; IPv6 without brackets.
        slots: number of workers; None means one per GPU, or one if the host has no GPU.
        user, port: login name and port for ssh; None leaves them to ssh's own configuration.
        address: IP address that other nodes use; None to discover it.
        python: interpreter to run on the host.
        gpus: devices to use, by index or UUID; None for all devices found.
        labels: labels for placement.
        env: variables for this host only.
        fake_gpus: number of GPUs to pretend to have, to try out a placement.
        source: location of the entry as ``file:line``.
        max_slots: upper bound on ``slots``, which applies even if ``slots`` is None.
        slurm: the host's place in the Slurm allocation, if the launcher reaches the host with srun.
    """

    name: str
    slots: int | None = None
    user: str | None = None
    port: int | None = None
    address: str | None = None
    python: str | None = None
    gpus: tuple[str, ...] | None = None
    labels: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    fake_gpus: int | None = None
    source: str = ""
    max_slots: int | None = None
    slurm: SlurmNode | None = None

    @property
    def is_local(self) -> bool:
        """True if the name means this machine; ``alice@localhost``, with a user or port, still uses ssh."""
        return self.name.lower() in _LOCAL and self.user is None and self.port is None

    @property
    def identity(self) -> tuple[str, int | None]:
        """Key that is equal for entries of the same machine; different ssh ports may lead to different machines."""
        return ("localhost" if self.is_local else self.name.lower(), self.port)


def describe(host: Host, *, is_here: bool = False) -> str:
    """Describe a parsed host in one line, with secrets masked.

    Args:
        is_here: True if the host is this machine.
    """
    words = [host.name]
    words += [f"user={host.user}"] if host.user else []
    words += [f"port={host.port}"] if host.port else []
    words.append(f"slots={'(one per GPU, else 1)' if host.slots is None else host.slots}")
    words += [f"max_slots={host.max_slots}"] if host.max_slots is not None else []
    words += [f"addr={host.address}"] if host.address else []
    words += [f"python={host.python}"] if host.python else []
    words += [f"gpus={','.join(host.gpus) or 'none'}"] if host.gpus is not None else []
    words += [f"fake_gpus={host.fake_gpus}"] if host.fake_gpus is not None else []
    words += [f"labels={','.join(host.labels)}"] if host.labels else []
    words += [f"env.{name}={shown(name, value)}" for name, value in host.env.items()]
    words += [f"({_way(host, is_here)})"]
    words += [f"from {host.source}"] if host.source else []
    return " ".join(words)


def _way(host: Host, is_here: bool) -> str:
    if host.slurm is None:
        return "local" if host.is_local else "this machine, without ssh" if is_here else "ssh"
    component = "" if host.slurm.component is None else f", component {host.slurm.component}"
    return f"{'local' if host.slurm.is_here else 'srun'}{component}"
