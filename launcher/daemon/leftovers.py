"""``Leftovers``, processes that a dead worker has left: finds them among this daemon's children, ends and reaps them.

A worker is a subreaper, and so is this daemon: while the worker lives, its descendants have it among their ancestors,
and at its death the kernel makes all of them that have lost their parents children of this daemon.
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

_AGAIN_S: Final = 0.1
"""Until a look for processes is repeated for which this daemon had no descriptors."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def note_session(session: int, pid: int, environment: Mapping[str, str]) -> None:
    """Record the session of a process in the folder of its node, for a sweep once all daemons are killed.

    ``launcher/remote/sweeper.py`` reads it, and finds processes by it that have overwritten their environment.
    """
    if PARENT_SOCKET not in environment:
        return
    start = start_of(session) or start_of(pid)  # the leader of a session may have ended before the others
    with (
        contextlib.suppress(OSError),  # a full disk: a sweep has the environments of most processes
        Path(environment[PARENT_SOCKET]).with_name(SESSIONS).open("a") as file,
    ):
        file.write(f"{session} {start} {_BOOT_ID.read_text().strip()}\n")


class Leftovers:
    """Processes that one worker leaves.

    Args:
        worker: its pid, which is the number of its session too.
        token: the value of ``MARKER`` that its descendants inherit.
        on_gone: is called once all of them have ended, after each ``end()``.
    """

    _workers: ClassVar[set[int]] = set()
    """Workers of this daemon that it has not reaped; one that overwrites its environment looks like a leftover."""

    def __init__(self, loop: asyncio.AbstractEventLoop, worker: int, token: str, on_gone: Callable[[], None]) -> None:
        self._loop = loop
        self._worker = worker
        self._start = int(start_of(worker) or 0)
        self._marker = f"{MARKER}={token}".encode()
        self._on_gone = on_gone
        self._ending: dict[int, int] = {}
        self._workers.add(worker)

    def end(self) -> None:
        """Begin to end them, now that the worker is dead and reaped."""
        self._workers.discard(self._worker)
        remove_cuda_files(self._worker)
        self._sweep()

    def release(self) -> None:
        """Know the process no more; what it has left lives on."""
        self._workers.discard(self._worker)

    def _sweep(self) -> None:
        try:
            self._end_those_left()
        except OSError as error:  # no descriptor is free; else the group's end would wait for theirs for ever
            logger.warning("the processes that worker %d has left cannot be watched yet: %s", self._worker, error)
            self._loop.call_later(_AGAIN_S, self._sweep)

    def _end_those_left(self) -> None:
        left = [pid for pid in children() if pid not in self._ending and self._is_left(pid)]
        for pid in left:
            if not is_tracker(pid) and self._watch(pid):
                os.kill(pid, signal.SIGKILL)
        if self._ending:
            return
        # A tracker sees the end of its pipe when the last process has ended that could use the memory, and not before:
        # only now does its time begin.
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
        # The environment of every child that this daemon starts has a marker.  A child without one has overwritten its
        # environment, as setproctitle does, or was started without it; it is a dead worker's, since living workers
        # adopt their own.  An ending process has no environment either, and its parent needs its exit status.
        name = f"{MARKER}=".encode()
        if any(variable.startswith(name) for variable in variables) or pid in self._workers or _is_ending(pid):
            return False
        return int(start_of(pid) or 0) >= self._start > 0

    def _watch(self, pid: int) -> bool:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended, or is another user's now
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
        self._sweep()  # its own children are this daemon's now

    def _kill(self, pids: list[int]) -> None:
        for pid in pids:
            if pid in self._ending:
                signal.pidfd_send_signal(self._ending[pid], signal.SIGKILL)


def _is_ending(pid: int) -> bool:
    """True if a process has no memory any more, and no environment."""
    try:
        return Path(f"/proc/{pid}/statm").read_text().startswith("0 ")
    except OSError:
        return True


def session_of(pid: int) -> int:
    """Return the session of a process, a zombie as well; that has no environment any more."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0
