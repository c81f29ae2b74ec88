"""``EngineProcesses``: processes that an engine has started, watched by pidfd: the first end is told with its cause."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Final

_STATES: Final = {"R": "runs", "S": "sleeps", "D": "waits for IO", "T": "is stopped", "t": "is stopped by a debugger"}


class EngineProcesses:
    """Processes of one engine.  None of them may end before ``close``."""

    def __init__(self, owner: str) -> None:
        """Make it on the loop that waits for ``ended``."""
        self._owner = owner
        self._names: dict[int, str] = {}
        self._fds: dict[int, int] = {}
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[str] = self._loop.create_future()

    def __repr__(self) -> str:
        return f"<EngineProcesses of {self._owner}: {self.describe()}>"

    def add(self, pid: int, name: str) -> None:
        """Watch a process; one that is watched already keeps its name."""
        if pid in self._names:
            return
        self._names[pid] = name
        try:
            fd = self._fds[pid] = os.pidfd_open(pid)
        except ProcessLookupError:
            self._note(pid, None)
        else:
            self._loop.add_reader(fd, self._note, pid, fd)

    async def ended(self) -> None:
        """Wait until one of them ends.

        Raises:
            RuntimeError: one has ended; the text says which and how.
        """
        raise RuntimeError(await asyncio.shield(self._ended))

    def describe(self) -> str:
        """Return each process with its state, in words."""
        return ", ".join(f"{name} (pid {pid}) {_state_of(pid)}" for pid, name in self._names.items())

    def kill(self) -> None:
        """Kill those that have not ended."""
        for fd in self._fds.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)

    def close(self) -> None:
        """Watch nothing any more. Idempotent."""
        for fd in self._fds.values():
            self._loop.remove_reader(fd)
            os.close(fd)
        self._fds.clear()

    def _note(self, pid: int, fd: int | None) -> None:
        if fd is not None:
            self._loop.remove_reader(fd)  # it stays readable
        if not self._ended.done():
            self._ended.set_result(f"{self._names[pid]} (pid {pid}) of {self._owner} {_end_of(fd)}")


def _end_of(fd: int | None) -> str:
    # A process that this one has not started itself has no exit status here.
    with contextlib.suppress(OSError, ValueError):
        if fd is not None and (end := os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
            if end.si_code == os.CLD_EXITED:
                return f"exited with code {end.si_status}"
            return f"was killed by {signal.Signals(end.si_status).name}"
    return "has ended"


def _state_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "has ended"
    return _STATES.get(state, f"is in state {state}")
