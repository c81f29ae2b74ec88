"""System calls of this process's threads, and the external objects for which they wait."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PLACE: Final = 1 if platform.machine() == "aarch64" else 0

_NUMBERS: Final = {
    "futex": (202, 98),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "read": (0, 63),
    "recvfrom": (45, 207),
    "recvmsg": (47, 212),
    "write": (1, 64),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "connect": (42, 203),
    "accept": (43, 202),
    "accept4": (288, 242),
    "wait4": (61, 260),
    "waitid": (247, 95),
}

_NAMES: Final = {numbers[_PLACE]: name for name, numbers in _NUMBERS.items()}

# Maps each call whose first argument is a descriptor to a description of its wait.
_ON_FILES: Final = {
    **dict.fromkeys(("read", "recvfrom", "recvmsg"), "data from"),
    **dict.fromkeys(("write", "sendto", "sendmsg"), "room for data to"),
    "connect": "a connection to",
    **dict.fromkeys(("accept", "accept4"), "a connection at"),
}

_P_PID: Final = 1
_FUTEX_PRIVATE: Final = 128


@dataclass(frozen=True)
class SystemCall:
    """A system call of a thread; the name is empty for irrelevant calls, and outside of system calls."""

    name: str = ""
    arguments: tuple[int, ...] = (0,) * 6

    @property
    def is_timed(self) -> bool:
        return self.arguments[3] != 0

    @property
    def is_shared(self) -> bool:
        """True for a ``futex`` in memory that processes share, as in multiprocessing's locks and events."""
        return not self.arguments[1] & _FUTEX_PRIVATE

    @property
    def outside(self) -> tuple[str, str]:
        """Return the kind and description of the awaited external object; empty if unknown."""
        first, second, *_ = self.arguments
        if self.name in _ON_FILES:
            kind, name = _file(first)
            # If this process also holds the other end of a pipe, a read never ends, even after the child that writes
            # has exited.
            ended = _ended_child() if name in ("a pipe", "a socket") else ""
            return kind, f"{_ON_FILES[self.name]} {name}{ended}"
        if self.name == "wait4" or (self.name == "waitid" and first == _P_PID):
            pid = first if self.name == "wait4" else second
            return "process", f"the end of process {pid}" if 0 < pid < 1 << 31 else "the end of a child process"
        return "", ""


def system_call_of(native_id: int | None) -> SystemCall:
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/self/task/{native_id}/syscall", "rb") as file:
            number, *arguments = file.read().split()
        return SystemCall(_NAMES.get(int(number), ""), tuple(int(argument, 16) for argument in arguments[:6]))
    return SystemCall()


def _file(fd: int) -> tuple[str, str]:
    try:
        name = str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return "file", "a file"
    kind, _, _ = name.partition(":")
    if kind == "socket":
        return kind, f"socket {address}" if (address := _address(fd)) else "a socket"
    return ("pipe", "a pipe") if kind == "pipe" else ("file", name)


def _address(fd: int) -> str:
    """Return the address of a socket's peer; for a listening socket, return its own address."""
    # Use a duplicate, because the other thread may close its descriptor, after which the number may refer to another
    # file.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as copy:
        try:
            address = copy.getpeername()
        except OSError:
            address = copy.getsockname()
        if copy.family in (socket.AF_INET, socket.AF_INET6):
            host = f"[{address[0]}]" if ":" in address[0] else address[0]
            return f"{host}:{address[1]}"
        return address.decode(errors="replace").lstrip("\0") if isinstance(address, bytes) else str(address)
    return ""


def _ended_child() -> str:
    with contextlib.suppress(OSError):
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            how = "exit code" if found.si_code == os.CLD_EXITED else "signal"
            return f"; child process {found.si_pid} has ended ({how} {found.si_status})"
    return ""
