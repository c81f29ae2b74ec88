"""Kills the processes that the user's script leaves behind: adopted as a subreaper, recognised by the run's id."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36

_TRACKERS: Final = (b"resource_tracker import main", b"torch_shm_manager")
_TRACKERS_S: Final = 3.0
"""As in ``launcher/daemon/guardian.py``."""


class Orphans:
    """Adopts, as a subreaper, the processes that the script's leave behind in any session, and ends them with the run.

    Only what bears the run's id in its environment is ended, or has overwritten that, as setproctitle does.  Children
    that we had before are not touched.
    """

    def __init__(self, run: str) -> None:
        self._mark = f"RLINF_RUN_ID={run}".encode()
        self._others = set(_children())
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def end(self) -> None:
        """Kill and reaps them, and what they leave in turn; trackers of shared memory last, if they do not end."""
        while found := list(self._find()):
            others = [pid for pid in found if not _is_tracker(pid)]
            if not others:
                _await_ends(found, _TRACKERS_S)
            for pid in others or found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)
                for path in Path("/dev/shm").glob(f"cuda.shm.*.{pid:x}.*"):  # as ``remove_cuda_files`` of the guardian
                    with suppress(OSError):  # another user's, of a namespace with the same pid
                        path.unlink()
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)

    def _find(self) -> Iterator[int]:
        for pid in _children():
            if pid in self._others:
                continue
            variables = _environment(pid)
            # An overwritten environment has no variables: nothing that this process starts itself is without.
            if self._mark in variables or _is_ending(pid) or not any(b"=" in variable for variable in variables):
                yield pid


def _is_tracker(pid: int) -> bool:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        return any(part in words for part in _TRACKERS)
    return False


def _await_ends(pids: list[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for pid in pids:
        with suppress(ProcessLookupError), open(os.pidfd_open(pid)) as ended:
            poll = select.poll()
            poll.register(ended, select.POLLIN)
            poll.poll(max(0.0, deadline - time.monotonic()) * 1000)


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
