"""``Leftovers``: finds the processes that a dead worker left among this daemon's children, kills and reaps them.

Both a worker and this daemon are subreapers.  While the worker is alive, it is an ancestor of all its descendants; when
it dies, the kernel makes its orphaned descendants children of this daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Final

from rlinf_async._core.own_logger import own_logger

from .fork_server import MARKER, PARENT_SOCKET
from .guardian import TRACKERS_S, children, is_tracker, remove_cuda_files
from .process_state import start_of

logger = own_logger(__name__)

SESSIONS: Final = "sessions"
"""File in a node's folder that lists its workers' sessions, one per line: number, leader's start time, boot id."""

_AGAIN_S: Final = 0.1  # seconds until a search that lacked descriptors is repeated

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def note_session(session: int, pid: int, environment: Mapping[str, str]) -> None:
    """Record a process's session in its node's folder, for a sweep after all daemons have been killed.

    ``launcher/remote/sweeper.py`` reads the file to find processes that have overwritten their environment.
    """
    if PARENT_SOCKET not in environment:
        return
    start = start_of(session) or start_of(pid)  # the session's leader may already have ended
    with (
        contextlib.suppress(OSError),  # on a full disk a sweep still finds most processes by their environment
        Path(environment[PARENT_SOCKET]).with_name(SESSIONS).open("a") as file,
    ):
        file.write(f"{session} {start} {_BOOT_ID.read_text().strip()}\n")


class Leftovers:
    """Processes that one worker leaves behind.

    Args:
        worker: the worker's pid, which is also its session's number.
        token: value of ``MARKER`` that the worker's descendants inherit.
        on_gone: called after each ``end()``, when all leftovers have ended.
    """

    _workers: ClassVar[set[int]] = set()
    """Unreaped workers of this daemon, kept because a worker that overwrites its environment looks like a leftover."""

    def __init__(self, loop: asyncio.AbstractEventLoop, worker: int, token: str, on_gone: Callable[[], None]) -> None:
        self._loop = loop
        self._worker = worker
        self._start = int(start_of(worker) or 0)
        self._marker = f"{MARKER}={token}".encode()
        self._on_gone = on_gone
        self._ending: dict[int, int] = {}
        self._workers.add(worker)

    def end(self) -> None:
        """Start killing the leftovers of the worker, which is dead and reaped."""
        self._workers.discard(self._worker)
        remove_cuda_files(self._worker)
        self._sweep()

    def release(self) -> None:
        """Stop tracking the worker and let its leftovers live."""
        self._workers.discard(self._worker)

    def _sweep(self) -> None:
        try:
            self._kill_left()
        except OSError as error:  # no descriptor is free; without a retry the group's close would wait forever
            logger.warning("the processes that worker %d has left cannot be watched yet: %s", self._worker, error)
            self._loop.call_later(_AGAIN_S, self._sweep)

    def _kill_left(self) -> None:
        left = [pid for pid in children() if pid not in self._ending and self._is_left(pid)]
        for pid in left:
            if not is_tracker(pid) and self._watch(pid):
                os.kill(pid, signal.SIGKILL)
        if self._ending:
            return
        # A tracker's pipe closes when the last process that could use the memory ends, so its timeout starts only now.
        # tests/test_orphans.py::test_nothing_is_left_of_a_plain_script
        for pid in left:
            if self._watch(pid):
                self._loop.call_later(TRACKERS_S, self._kill, pid)
        if not self._ending:
            self._on_gone()

    def _is_left(self, pid: int) -> bool:
        if session_of(pid) == self._worker:
            return True
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # a lack of descriptors says nothing
            return False
        if self._marker in variables:
            return True
        # Every child that this daemon starts has a marker in its environment. A child without a marker has overwritten
        # its environment, as setproctitle does, or was started without the marker. Such a child belongs to a dead
        # worker, because live workers adopt their own descendants. A zombie has no environment either, but its parent
        # still needs its exit status.
        name = f"{MARKER}=".encode()
        if any(variable.startswith(name) for variable in variables) or pid in self._workers or _is_ending(pid):
            return False
        return int(start_of(pid) or 0) >= self._start > 0

    def _watch(self, pid: int) -> bool:
        # ProcessLookupError: the process has ended.  PermissionError: it now runs as another user.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, 0)
            pidfd = self._ending[pid] = os.pidfd_open(pid)
            self._loop.add_reader(pidfd, self._ended, pid)
            return True
        return False

    def _ended(self, pid: int) -> None:
        pidfd = self._ending.pop(pid)
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        remove_cuda_files(pid)
        self._sweep()  # the process's orphans are now children of this daemon

    def _kill(self, pid: int) -> None:
        if pid in self._ending:
            signal.pidfd_send_signal(self._ending[pid], signal.SIGKILL)


def _is_ending(pid: int) -> bool:
    """True if a process has released its memory, and thus its environment."""
    try:
        return Path(f"/proc/{pid}/statm").read_text().startswith("0 ")
    except OSError:
        return True


def session_of(pid: int) -> int:
    """Return the session of a process or zombie; 0 if there is no such process."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0
