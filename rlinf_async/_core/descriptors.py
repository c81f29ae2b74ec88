"""Shortages of file descriptors (EMFILE, ENFILE): error texts that name the limit and the remedy."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from rlinf_async.errors import LaunchError


def limit_met(error: BaseException) -> str:
    """Return the limit on open files that a system call hit, as the end of an error text; empty for other errors."""
    match error:
        case OSError(errno=errno.EMFILE):
            return f" (it may open {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} files: `ulimit -n`)"
        case OSError(errno=errno.ENFILE):
            return " (the system has no file left: `sysctl fs.file-max`)"
    return ""


@contextlib.contextmanager
def explained_shortage(host: str, what: str, needed: int) -> Iterator[None]:
    """Context manager: turns a shortage of descriptors into a ``LaunchError``; ``what`` says what they are for."""
    try:
        yield
    except (OSError, LaunchError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise LaunchError(_explained(cause, host, what, needed)) from error


def _explained(error: OSError, host: str, what: str, needed: int) -> str:
    if error.errno == errno.ENFILE:
        return f"{host}: the system has no file left for {what}, about {needed} are needed\n  fix: `sysctl fs.file-max`"
    limit, utmost = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = 0
    with contextlib.suppress(OSError):  # listing the folder also takes a descriptor
        used = sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1
    enough = 1 << (max(limit, used + needed) + needed).bit_length()
    by_whom = ", by root or in limits.conf" if enough > utmost else ""
    count = f", of which {used} are in use" if used else ""
    return (
        f"{host}: too few file descriptors for {what}: about {needed} are needed, and process {os.getpid()} may have "
        f"{limit}{count}\n  fix: `ulimit -n {enough}` before the run is started{by_whom}"
    )
