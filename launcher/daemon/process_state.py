"""A process's state from ``/proc`` as text: stopped, in the kernel, ended, or running another program after exec."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

IN_KERNEL: Final = "inside the kernel (D)"

_STATES: Final = {
    "T": "stopped (T)",
    "t": "stopped by a debugger (t)",
    "D": IN_KERNEL,
    "Z": "ended (Z)",
}

_MAX_STAT_BYTES: Final = 4096
# Indices of fields in /proc/PID/stat, counted after the program's name.
_STATE: Final = 0
_FLAGS: Final = 6
_CPU_TIMES: Final = slice(11, 13)
_START_TIME: Final = 19
_START_STACK: Final = 25

_PF_EXITING: Final = 0x4  # set on an exiting process before the kernel closes its descriptors

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")

# A process's program and its stack's start address; fork keeps both, and exec changes at least the second.
Image = tuple[str, str]


def image_of(pid: int) -> Image | None:
    """Return the program that a process runs; None if unreadable."""
    try:
        return _image(pid, stat_of(pid))
    except (OSError, IndexError):
        return None


def state_of(pid: int, image: Image | None) -> str:
    """Describe the unusual state of a process that began as ``image``; empty if it is normal or unreadable."""
    try:
        stat = stat_of(pid)
        found = [_STATES.get(stat[_STATE], "")]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return "ended"
    except OSError:  # a lack of descriptors here does not mean that the process has ended
        return ""
    with contextlib.suppress(OSError, IndexError):
        if image is not None and (now := _image(pid, stat)) != image:
            found.append(f"exec'ed: it is {command_of(pid) or now[0]} now")
    return ", ".join(filter(None, found))


def is_stopped(pid: int) -> bool:
    try:
        return stat_of(pid)[_STATE] in ("T", "t")
    except (OSError, IndexError):
        return False


def is_exiting(pid: int) -> bool:
    """True if a process has ended or is exiting."""
    try:
        return bool(int(stat_of(pid)[_FLAGS]) & _PF_EXITING)
    except (OSError, IndexError):
        return True


def catches(pid: int, number: int) -> bool:
    """True if a process handles a signal, which could otherwise kill it.

    Raises:
        OSError: the state is unreadable.
    """
    lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
    mask = next((line for line in lines if line.startswith(b"SigCgt:")), b"SigCgt: 0").split()[1]
    return bool(int(mask, 16) >> (number - 1) & 1)


def _image(pid: int, stat: list[str]) -> Image:
    return str(Path(f"/proc/{pid}/exe").readlink()), stat[_START_STACK]


def start_of(pid: int) -> str:
    """Return a process's start time in kernel ticks; empty if it has ended."""
    try:
        stat = stat_of(pid)
        return "" if stat[_STATE] in ("Z", "X") else stat[_START_TIME]
    except (OSError, IndexError):
        return ""


def cpu_seconds(pid: int) -> float:
    try:
        return sum(map(int, stat_of(pid)[_CPU_TIMES])) / _TICKS_PER_S
    except (OSError, IndexError):
        return 0.0


def resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def private_bytes(pid: int) -> int:
    """Return how many bytes of memory a process shares with no other process; 0 if unreadable."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def stat_of(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the program's name.  Raises OSError if the process does not exist."""
    # Read bytes, not text: the kernel truncates the name to 15 bytes, which may split a character.
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
        return file.read(_MAX_STAT_BYTES).rpartition(b")")[2].decode("ascii").split()


def command_of(pid: int) -> str:
    """Return a process's command line, at most 200 characters; empty if unreadable."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return words.replace(b"\0", b" ").decode(errors="replace").strip()[:200]
