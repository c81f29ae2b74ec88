"""State of a process from ``/proc``, in words: stopped, in the kernel, ended, or exec'ed into another program."""

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
"""Words for the states in which a process does not run."""

_MAX_STAT_BYTES: Final = 4096
_STATE: Final = 0
_FLAGS: Final = 6
_CPU_TIMES: Final = slice(11, 13)
_START_TIME: Final = 19
_START_STACK: Final = 25
"""Places in /proc/PID/stat behind the name of the program."""

_PF_EXITING: Final = 0x4
"""Flag of a process that runs no program any more, from before its descriptors are closed."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")

Image = tuple[str, str]
"""Program that a process runs, and where its stack begins: a fork leaves both, exec changes at least the second."""


def image_of(pid: int) -> Image | None:
    """What a process runs; None where that cannot be read."""
    try:
        return _image(pid, stat_of(pid))
    except (OSError, IndexError):
        return None


def state_of(pid: int, image: Image | None) -> str:
    """Return what is unusual about a process, in words; empty if nothing is, or if that cannot be read.

    Args:
        image: what it ran when it was started; None where that is not known.
    """
    try:
        stat = stat_of(pid)
        found = [_STATES.get(stat[_STATE], "")]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return "ended"
    except OSError:  # a verdict must not take a shortage of descriptors for the end of a process, which is asked then
        return ""
    with contextlib.suppress(OSError, IndexError):
        if image is not None and (now := _image(pid, stat)) != image:
            found.append(f"exec'ed: it is {command_of(pid) or now[0]} now")
    return ", ".join(filter(None, found))


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP or a debugger keeps a process from running."""
    try:
        return stat_of(pid)[_STATE] in ("T", "t")
    except (OSError, IndexError):
        return False


def is_exiting(pid: int) -> bool:
    """True if a process has ended, or is about to."""
    try:
        return bool(int(stat_of(pid)[_FLAGS]) & _PF_EXITING)
    except (OSError, IndexError):
        return True


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal; one without may die of it.

    Raises:
        OSError: that cannot be read.
    """
    lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
    mask = next((line for line in lines if line.startswith(b"SigCgt:")), b"SigCgt: 0").split()[1]
    return bool(int(mask, 16) >> (number - 1) & 1)


def _image(pid: int, stat: list[str]) -> Image:
    return str(Path(f"/proc/{pid}/exe").readlink()), stat[_START_STACK]


def start_of(pid: int) -> str:
    """When a process has started, in the kernel's ticks; empty where it has ended."""
    try:
        stat = stat_of(pid)
        return "" if stat[_STATE] in ("Z", "X") else stat[_START_TIME]
    except (OSError, IndexError):
        return ""


def cpu_seconds(pid: int) -> float:
    """Seconds of processors that a process has had, with all its threads; 0 where that cannot be read."""
    try:
        return sum(map(int, stat_of(pid)[_CPU_TIMES])) / _TICKS_PER_S
    except (OSError, IndexError):
        return 0.0


def resident_bytes(pid: int) -> int:
    """Bytes of memory in which a process stands; 0 where that cannot be read."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def private_bytes(pid: int) -> int:
    """Bytes of memory that a process shares with no other one; 0 where that cannot be read."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name of the program; OSError where it is not there."""
    # Its name, which the kernel cuts at 15 bytes wherever these are, may be no text.
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
        return file.read(_MAX_STAT_BYTES).rpartition(b")")[2].decode("ascii").split()


def command_of(pid: int) -> str:
    """The command line of a process, cut after 200 characters; empty where it cannot be read."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return words.replace(b"\0", b" ").decode(errors="replace").strip()[:200]
