"""``EngineProcesses``: watches the processes of an engine by pidfd, and reports the first exit with its cause."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Final

_STATES: Final = {"R": "runs", "S": "sleeps", "D": "waits for IO", "T": "is stopped", "t": "is stopped by a debugger"}


class EngineProcesses:
    """The processes of one engine, none of which may exit before ``close``."""

    def __init__(self, owner: str) -> None:
        """Create the object on the loop that will wait for ``ended``."""
        self._owner = owner
        self._names: dict[int, str] = {}
        self._fds: dict[int, int] = {}
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[str] = self._loop.create_future()

    def __repr__(self) -> str:
        return f"<EngineProcesses of {self._owner}: {self.describe()}>"

    def add(self, pid: int, name: str) -> None:
        """Watch a process; a process that is already watched keeps its name."""
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
        """Wait until one of the processes exits.

        Raises:
            RuntimeError: a process has exited; the text says which one and how.
        """
        raise RuntimeError(await asyncio.shield(self._ended)) from None

    def describe(self) -> str:
        """Return a text that lists each process and its state."""
        return ", ".join(f"{name} (pid {pid}) {_state_of(pid)}" for pid, name in self._names.items())

    def kill(self) -> None:
        """Kill the processes that have not exited."""
        for fd in self._fds.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)

    def close(self) -> None:
        """Stop watching the processes. Idempotent."""
        for fd in self._fds.values():
            self._loop.remove_reader(fd)
            os.close(fd)
        self._fds.clear()

    def _note(self, pid: int, fd: int | None) -> None:
        if fd is not None:
            self._loop.remove_reader(fd)  # the pidfd stays readable
        if not self._ended.done():
            self._ended.set_result(f"{self._names[pid]} (pid {pid}) of {self._owner} {_end_of(fd)}")


def _end_of(fd: int | None) -> str:
    # The exit status is available only for this process's own children.
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
