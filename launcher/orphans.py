"""Kills the processes that the user's script leaves behind: adopted as a subreaper, recognised by the run's id."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36


class Orphans:
    """Adopts, as a subreaper, the processes that the script's leave behind in any session, and ends them with the run.

    Only what bears the run's id in its environment is ended.  Children that we had before are not touched.
    """

    def __init__(self, run: str) -> None:
        self._mark = f"RLINF_RUN_ID={run}".encode()
        self._others = set(_children())
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def end(self) -> None:
        """Kills and reaps them, and what they leave in turn."""
        while found := list(self._find()):
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)

    def _find(self) -> Iterator[int]:
        for pid in _children():
            if pid not in self._others and (self._mark in _environment(pid) or _is_ending(pid)):
                yield pid


def _children() -> Iterator[int]:
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended
            yield from map(int, (task / "children").read_text().split())


def _environment(pid: int) -> list[bytes]:
    """Its entries; none where it has ended, or is about to."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


def _is_ending(pid: int) -> bool:
    """Its memory is gone, and so is what it bore in its environment; children that it leaves come to us next."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/statm").read_text().startswith("0 ")
    return True


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
