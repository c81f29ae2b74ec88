"""The shared-memory budget of a machine or container, and received shared-memory segments.

Shared memory counts against the total of the machine or container, and a process that writes beyond that total is
killed. So a budget bounds all shared memory together, whoever owns it; a message that does not fit is not shared.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Final

from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.pool import pool
from rlinf_async._core.segment import map_private
from rlinf_async.errors import SerializationError

logger = own_logger(__name__)

BUDGET: Final = "RLINF_SHM_BUDGET"
"""Environment variable with the budget in bytes; the number may end in K, M, G or T."""

_ALWAYS_FITS_BYTES: Final = 1 << 20
"""Size in bytes below which messages are not checked against the machine's memory."""

_COPY_MAX_BYTES: Final = 256 * 1024
"""Size in bytes up to which reading is faster than mapping."""

_RESERVED_FRACTION: Final = 0.03


class SharedSegment:
    """A received sealed memory segment that is not mapped yet; holds its descriptor until closed or forgotten."""

    __slots__ = ("_fd", "nbytes")

    def __init__(self, fd: int, nbytes: int) -> None:
        self._fd = fd
        self.nbytes = nbytes

    def __repr__(self) -> str:
        return f"<Segment fd {self._fd} [{self.nbytes} bytes]>"

    @property
    def is_small(self) -> bool:
        return self.nbytes <= _COPY_MAX_BYTES

    def open(self) -> memoryview:
        """Return writable private memory with the content, like ``map_private``."""
        if self.is_small:
            memory = memoryview(bytearray(self.nbytes))
            self.read_into(memory)
            return memory
        return map_private(self._fd, self.nbytes)

    def read_into(self, memory: memoryview) -> None:
        """Copy the content to flat memory of the same size. Raise SerializationError if the content is smaller."""
        offset = 0
        while offset < self.nbytes:
            read = os.preadv(self._fd, [memory[offset:]], offset)
            if not read:
                raise SerializationError(f"a segment was said to have {self.nbytes} bytes and has {offset}")
            offset += read

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


def fits(nbytes: int) -> bool:
    """True if a message of ``nbytes`` bytes may be shared. Log once when the budget is used up."""
    if nbytes < _ALWAYS_FITS_BYTES or pool.has(nbytes):
        return True
    try:
        used, available, total = _usage()
        limit = budget()
    except OSError:  # no descriptor is free; creating the segment will raise a better error
        return True
    if used + nbytes <= limit and nbytes + _RESERVED_FRACTION * total <= available:
        return True
    _warn(limit)
    return False


@functools.cache
def _warn(limit: int) -> None:
    used, available, _ = _usage()
    logger.warning(
        "messages take a slower way for want of shared memory: %.1f GiB are in use, the budget is %.1f GiB (%s) and "
        "%.1f GiB are available",
        used / (1 << 30), limit / (1 << 30), BUDGET, available / (1 << 30),
    )  # fmt: skip


@functools.cache
def budget() -> int:
    """Return the byte limit for this machine's shared-memory messages. Raise ValueError for a malformed setting."""
    wanted = os.environ.get(BUDGET)
    if wanted is None:
        limits = [limit for limit, _ in map(_limit_and_usage, _control_groups()) if limit is not None]
        return min([_machine()["MemTotal"], *limits]) // 2
    match = re.fullmatch(r"(\d+)([KMGT]?)", wanted.strip().upper().removesuffix("B").removesuffix("I"))
    if match is None:
        raise ValueError(f"{BUDGET}={wanted!r} is no size: give bytes, or a number with K, M, G or T behind it")
    return int(match[1]) << (10 * " KMGT".index(match[2] or " "))


def available() -> int:
    return _usage()[1]


def _usage() -> tuple[int, int, int]:
    machine = _machine()
    used, available, total = machine["Shmem"], machine["MemAvailable"], machine["MemTotal"]
    for group in _control_groups():
        limit, taken = _limit_and_usage(group)
        if limit is not None and limit < total:
            used, total = _shared_in(group), limit
            available = min(available, limit - taken)
    return used, available, total


def _machine() -> dict[str, int]:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}


@functools.cache
def _control_groups() -> tuple[Path, ...]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ()
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    if own is None:
        return ()
    root = Path("/sys/fs/cgroup")
    inner = root / own.lstrip("/")
    groups = [group for group in (inner, *inner.parents) if group.is_relative_to(root)]
    return tuple(group for group in reversed(groups) if (group / "memory.max").exists())


def _limit_and_usage(group: Path) -> tuple[int | None, int]:
    """Return the memory limit of a control group, and the part of its usage that cannot be reclaimed."""
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return None, 0
        taken = int((group / "memory.current").read_text()) - _stat(group, "inactive_file")
        return int(limit), taken
    except OSError:
        return None, 0


def _shared_in(group: Path) -> int:
    return _stat(group, "shmem")


def _stat(group: Path, name: str) -> int:
    for line in (group / "memory.stat").read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
