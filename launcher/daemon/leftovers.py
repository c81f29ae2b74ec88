"""``Leftovers``, processes that a dead worker has left: found among this daemon's children, killed and reaped.

A worker is a subreaper, and so is this daemon.  While the worker lives, it is an ancestor of all its descendants; at
its death the kernel makes its orphaned descendants children of this daemon.
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
"""File in a node's folder with the sessions of its workers, one per line: number, start of its leader, boot."""

_AGAIN_S: Final = 0.1  # seconds until a search that failed for lack of descriptors is repeated

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def note_session(session: int, pid: int, environment: Mapping[str, str]) -> None:
    """Record a process's session in its node's folder, for a sweep after all daemons were killed.

    ``launcher/remote/sweeper.py`` reads the file to find processes that have overwritten their environment.
    """
    if PARENT_SOCKET not in environment:
        return
    start = start_of(session) or start_of(pid)  # the session's leader may have ended already
    with (
        contextlib.suppress(OSError),  # even if the disk is full, a sweep finds most processes by their environment
        Path(environment[PARENT_SOCKET]).with_name(SESSIONS).open("a") as file,
    ):
        file.write(f"{session} {start} {_BOOT_ID.read_text().strip()}\n")


class Leftovers:
    """Processes that one worker leaves behind.

    Args:
        worker: pid of the worker, which is also the number of its session.
        token: value of ``MARKER`` that its descendants inherit.
        on_gone: called when all of them have ended, after each ``end()``.
    """

    _workers: ClassVar[set[int]] = set()
    """Unreaped workers of this daemon; a worker that overwrites its environment looks like a leftover."""

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
        """Stop tracking the worker; its leftovers live on."""
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
        # A tracker's pipe closes when the last process that could use the memory has ended, so only now does the
        # tracker's time begin.
        # tests/test_orphans.py::test_nothing_is_left_of_a_plain_script
        trackers = [pid for pid in left if self._watch(pid)]
        if trackers:
            self._loop.call_later(TRACKERS_S, self._kill, trackers)
        else:
            self._on_gone()

    def _is_left(self, pid: int) -> bool:
        if session_of(pid) == self._worker:
            return True
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        if self._marker in variables:
            return True
        # Every child that this daemon starts has a marker in its environment.  A child without one has overwritten its
        # environment, as setproctitle does, or was started without it.  It belongs to a dead worker, since live workers
        # adopt their own descendants.  A zombie has no environment either; its parent still needs its exit status.
        name = f"{MARKER}=".encode()
        if any(variable.startswith(name) for variable in variables) or pid in self._workers or _is_ending(pid):
            return False
        return int(start_of(pid) or 0) >= self._start > 0

    def _watch(self, pid: int) -> bool:
        # The process has ended, or now runs as another user.
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
        self._sweep()  # orphans of the process are children of this daemon now

    def _kill(self, pids: list[int]) -> None:
        for pid in pids:
            if pid in self._ending:
                signal.pidfd_send_signal(self._ending[pid], signal.SIGKILL)


def _is_ending(pid: int) -> bool:
    """True if a process has released its memory, and with it its environment."""
    try:
        return Path(f"/proc/{pid}/statm").read_text().startswith("0 ")
    except OSError:
        return True


def session_of(pid: int) -> int:
    """Return the session of a process or zombie; 0 if it does not exist."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0
