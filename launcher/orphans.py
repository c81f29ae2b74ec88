"""``Orphans``: adopts processes that the user's script leaves behind, and kills them when the run ends."""

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

# The same values as in launcher/daemon/guardian.py.
_TRACKERS: Final = (b"resource_tracker import main", b"torch_shm_manager")
_TRACKERS_S: Final = 3.0

_KILL_TIMEOUT_S: Final = 2.0


class Orphans:
    """Subreaper that adopts processes left behind by the script, in any session, and kills them when the run ends.

    It kills processes with the run's id in their environment, and processes that have overwritten their environment, as
    setproctitle does.  Children that the launcher already had are not touched.
    """

    def __init__(self, run: str) -> None:
        self._mark = f"RLINF_RUN_ID={run}".encode()
        self._others = set(_children())
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def end(self) -> None:
        """Kill and reap the orphans, including those of killed orphans; trackers of shared memory come last."""
        while found := list(self._find()):
            workers = [pid for pid in found if not _is_tracker(pid)]
            if not workers:
                _await_ends(found, _TRACKERS_S)
            for pid in workers or found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except PermissionError:  # the process now runs as another user, as with sudo
                    self._others.add(pid)
                    continue
                _await_ends([pid], _KILL_TIMEOUT_S)
                with suppress(ChildProcessError):
                    if os.waitpid(pid, os.WNOHANG) == (0, 0):  # it hangs in the kernel, and must not block the launcher
                        self._others.add(pid)
                # The same pattern as in the guardian's ``remove_cuda_files``.
                for path in Path("/dev/shm").glob(f"cuda.shm.*.{pid:x}.*"):
                    # The file may belong to another user's process with the same pid in another pid namespace.
                    with suppress(OSError):
                        path.unlink()
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)

    def _find(self) -> Iterator[int]:
        for pid in _children():
            if pid in self._others:
                continue
            variables = _environment(pid)
            # A process without any variable has overwritten its environment, because every process that the launcher
            # starts has some.
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
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


def _is_ending(pid: int) -> bool:
    """True if a process has released its memory and environment; this process will adopt its children."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/statm").read_text().startswith("0 ")
    return True


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
