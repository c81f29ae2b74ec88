"""The surroundings of a process: opens standard descriptors; checks system calls, ``/proc``, the working directory."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from pathlib import Path

from rlinf_async.errors import LaunchError


def open_standard_descriptors() -> None:
    """Open closed standard descriptors on ``/dev/null`` (``train.py <&-``, cron, supervisors).

    Otherwise the next file or socket gets one of these numbers and receives whatever libraries write to stdout or
    stderr. uvloop aborts a process that closes such a descriptor.
    """
    while (fd := os.open("/dev/null", os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:  # Python sets it to None if the descriptor was closed
            stream = open(number, mode, errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def check() -> None:
    """Check for the system calls and files that the framework needs; a LaunchError names the remedy."""
    working_directory()
    try:
        own = Path("/proc/self").readlink().name
    except OSError as error:
        raise LaunchError(f"/proc cannot be read ({error.strerror})\n  fix: `mount -t proc proc /proc`") from error
    if own != str(os.getpid()):
        raise LaunchError(
            f"/proc is that of another pid namespace: it calls this process {own}, which is {os.getpid()}\n"
            "  fix: `mount -t proc proc /proc` in this namespace, or `unshare --mount-proc`"
        )
    umask = re.search(r"^Umask:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    if umask is not None and int(umask[1], 8) & 0o700 and os.geteuid() != 0:
        raise LaunchError(
            f"with umask {umask[1]} this user may not enter the folders that it makes\n  fix: `umask 077`"
        )
    call = "memfd_create"
    try:
        os.close(os.memfd_create("probe"))
        call = "pidfd_open"
        pidfd = os.pidfd_open(os.getpid())
        try:
            call = "pidfd_send_signal"
            signal.pidfd_send_signal(pidfd, 0)
            call = "waitid(P_PIDFD)"
            # A kernel that has pidfds answers that this process is not its own child.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
        finally:
            os.close(pidfd)
    except OSError as error:
        raise LaunchError(
            f"Linux {os.uname().release} refuses {call} here: {error.strerror}\n"
            "  fix: Linux 5.4 or newer; in a container, a runtime and a seccomp profile that allow it"
        ) from error


def working_directory() -> str:
    """Return the working directory; LaunchError if it has been removed."""
    try:
        return str(Path.cwd())
    except OSError as error:
        raise LaunchError(
            f"the working directory of process {os.getpid()} has been removed ({Path('/proc/self/cwd').readlink()})\n"
            "  fix: `cd` to a folder that exists before the script is started, or `os.chdir` to one"
        ) from error
