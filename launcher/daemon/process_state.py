"""State of a process from ``/proc``, in words: stopped, in the kernel, ended, or exec'ed into another program."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_STATES: Final = {
    "T": "stopped (T)",
    "t": "stopped by a debugger (t)",
    "D": "inside the kernel (D)",
    "Z": "ended (Z)",
}
"""Words for the states in which a process does not run."""

_STATE: Final = 0
_START_STACK: Final = 25
"""Places in /proc/PID/stat behind the name of the program."""

Image = tuple[str, str]
"""Program that a process runs, and where its stack begins: a fork leaves both, exec changes at least the second."""


def image_of(pid: int) -> Image | None:
    """What a process runs; None where that cannot be read."""
    try:
        return str(Path(f"/proc/{pid}/exe").readlink()), _stat_of(pid)[_START_STACK]
    except (OSError, IndexError):
        return None


def state_of(pid: int, image: Image | None) -> str:
    """What is unusual about a process, in words; empty if nothing is.

    Args:
        image: what it ran when it was started; None where that is not known.
    """
    try:
        found = [_STATES.get(_stat_of(pid)[_STATE], "")]
    except (OSError, IndexError):
        return "ended"
    now = image_of(pid)
    if image is not None and now is not None and now != image:
        found.append(f"exec'ed: it is {command_of(pid) or now[0]} now")
    return ", ".join(filter(None, found))


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP or a debugger keeps a process from running."""
    try:
        return _stat_of(pid)[_STATE] in ("T", "t")
    except (OSError, IndexError):
        return False


def _stat_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def command_of(pid: int) -> str:
    """The command line of a process, cut after 200 characters; empty where it cannot be read."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return words.replace(b"\0", b" ").decode(errors="replace").strip()[:200]
