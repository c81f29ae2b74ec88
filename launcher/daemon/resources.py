"""Facts about a node, gathered without torch: CPUs and memory (within cgroup limits), accelerators, IPs, identity."""

from __future__ import annotations

import ipaddress
import os
import platform
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from rlinf_async.hardware import find_accelerators


def facts(
    gpus: Sequence[str] | None = None, fake_gpus: int | None = None, environ: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a node's facts for the other nodes, ready for JSON.

    They are ``hostname``, ``python`` ("3.11.7"), ``executable`` (its path), ``cpus`` (number usable), ``gpus``
    (``{"id", "model"}`` of each accelerator, of any vendor), ``accelerator_type`` (their family), ``rehearsed`` (True
    if they are only declared), ``addresses`` (IPs by interface), ``boot_id`` and ``machine_id`` (empty if the system
    has none), and ``time`` (seconds since 1970, to find skewed clocks).

    Args:
        gpus: ids from the hosts file, which override ``CUDA_VISIBLE_DEVICES``.
        fake_gpus: number of GPUs to declare, regardless of the node's hardware.
        environ: workers' environment, for ``CUDA_VISIBLE_DEVICES``; defaults to this process's environment.

    Raises:
        ConfigError: ``gpus`` names a device that the node does not have.
    """
    found = find_accelerators(os.environ if environ is None else environ, gpus, fake_gpus)
    return {
        "hostname": socket.gethostname(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "cpus": count_cpus(),
        "gpus": [{"id": device.id, "model": device.model} for device in found.devices],
        "accelerator_type": found.type,
        "rehearsed": found.rehearsed,
        "addresses": addresses(),
        "boot_id": _read(Path("/proc/sys/kernel/random/boot_id")),
        "machine_id": _read(Path("/etc/machine-id")),
        "time": time.time(),
    }


def addresses() -> dict[str, list[str]]:
    """Return the IPs of every interface that is up, IPv4 first.

    Link-local IPv6 addresses are omitted, because another node could use one only with the name of its own interface.
    """
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found: dict[str, list[str]] = {}
    for name, entries in psutil.net_if_addrs().items():
        v4 = [entry.address for entry in entries if entry.family == socket.AF_INET]
        v6 = [entry.address.partition("%")[0] for entry in entries if entry.family == socket.AF_INET6]
        usable = v4 + [address for address in v6 if not ipaddress.ip_address(address).is_link_local]
        if name in up and usable:
            found[name] = usable
    return found


def count_cpus(root: Path = Path("/")) -> int:
    """Return how many CPUs this process may use, given its affinity and its cgroups' quotas; at least 1."""
    allowed = len(os.sched_getaffinity(0))
    quotas = list(_quotas(root))
    # Round down: a single thread above the quota makes all threads wait for the next period.
    return max(1, min([allowed, *(int(quota) for quota in quotas)]))


def count_memory(root: Path = Path("/")) -> int:
    """Return how many bytes of memory this process may use, given the machine's memory and the cgroups' limits."""
    found = [int(line.split()[1]) << 10 for line in _read(root / "proc/meminfo").splitlines()[:1]]
    for folder, is_second in _groups(root, "memory"):
        limit = _read(folder / ("memory.max" if is_second else "memory.limit_in_bytes"))
        if limit.isdecimal():
            found.append(int(limit))
    return min(found)


def _quotas(root: Path) -> Iterator[float]:
    for folder, is_second in _groups(root, "cpu"):
        if is_second:
            yield from _quota(*_read(folder / "cpu.max").split())
        else:
            yield from _quota(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's cgroup and its ancestors, each with True for version 2."""
    mounts = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            # A hybrid system mounts version 2 in a separate folder.
            for mount in (mounts, mounts / "unified"):
                for folder in _upwards(mount, path):
                    yield folder, True
        elif controller in controllers.split(","):
            for mount in (mounts / controller, mounts / controllers):
                for folder in _upwards(mount, path):
                    yield folder, False


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Yield the folders of a group and its ancestors; in a container, perhaps only the mount exists."""
    folder = mount / path.lstrip("/")
    while folder != mount:
        yield folder
        folder = folder.parent
    yield mount


def _quota(limit: str = "", period: str = "") -> Iterator[float]:
    """Yield the number of CPUs that one group allows; yield nothing if it has no limit (``max`` or -1)."""
    if limit.isdecimal() and period.isdecimal() and int(period):
        yield int(limit) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
