"""``WorkerProcess``: runs a worker as the daemon's child, and handles its output, exit report and leftovers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from rlinf_async._core.descriptors import limit_met
from rlinf_async.errors import LaunchError

from .cleanup import run_all
from .exit_status import ExitStatus, reap
from .fork_server import ForkServer
from .leftovers import Leftovers, note_session
from .oom import MemoryKills
from .process_state import Image, image_of
from .worker_output import WorkerOutput, log_lacks

DESCRIPTORS_PER_WORKER: Final = 9
"""Number of descriptors that the daemon needs to start a worker, for sockets, pipes, logs and a pidfd."""

_SUFFIXES: Final = {"stdout": ".out", "stderr": ".err"}


class WorkerStarter(Protocol):
    """Interface of a template or a profiler, which starts a worker process."""

    async def fork(self, spec: Mapping[str, Any], fds: Sequence[int]) -> int: ...


@dataclass
class WorkerSetup:
    """Inputs for starting a worker process: plain data, and descriptors to inherit."""

    group: str
    rank: int
    name: str
    spec: dict[str, Any]
    store: socket.socket | None = None
    on_lines: Callable[[str, list[str]], None] | None = field(default=None, repr=False)


class WorkerProcess:
    """A worker; ``ended`` resolves to its exit status once its output is read and all its descendants have ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop, setup: WorkerSetup, node: str, log_dir: Path) -> None:
        self._loop = loop
        self.setup = setup
        self.node = node
        self.log = log_dir / setup.group.replace("/", "_") / f"rank_{setup.rank}"
        self.pid = 0
        self.exit_status: ExitStatus | None = None
        self.ended: asyncio.Future[ExitStatus] = loop.create_future()
        self.closing = False
        self._kill_reason = ""
        self.image: Image | None = None  # the program that the forked process runs; None under a profiler
        self._pidfd = -1
        self._memory_kills = MemoryKills.count()
        self._outputs: list[WorkerOutput] = []
        self._leftovers: Leftovers

    def __repr__(self) -> str:
        state = self.exit_status.text if self.exit_status else "alive"
        return f"<WorkerProcess {self.setup.name} pid {self.pid} {state}>"

    @property
    def log_path(self) -> str:
        return self.log_of("stderr")

    def log_of(self, stream: str) -> str:
        return f"{self.log}{_SUFFIXES[stream]}"

    async def start(self, template: WorkerStarter, on_death: Callable[[], None]) -> socket.socket:
        """Start the process; return the daemon's end of its socket.  Raises LaunchError if the fork failed."""
        try:
            own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except BaseException:
            if self.setup.store is not None:
                self.setup.store.close()
            raise
        fds = [other.fileno()]
        try:
            for name in _SUFFIXES:
                read, write = os.pipe2(os.O_CLOEXEC)
                fds.append(write)
                on_lines = None if self.setup.on_lines is None else functools.partial(self.setup.on_lines, name)
                try:
                    self._outputs.append(WorkerOutput(self._loop, read, Path(self.log_of(name)), on_lines))
                except BaseException:
                    os.close(read)
                    raise
            if self.setup.store is not None:
                fds.append(self.setup.store.fileno())
            self.pid = await template.fork({**self.setup.spec, "parent": os.getpid()}, fds)
            self._pidfd = self._open_pidfd()
            if isinstance(template, ForkServer):
                self.image = image_of(self.pid)
            # The worker waits for the daemon's greeting, so its session is recorded before it can start a process.
            note_session(self.pid, self.pid, self.setup.spec["env"])
            self._leftovers = Leftovers(self._loop, self.pid, self.setup.spec["token"], self._all_gone)
        except BaseException:
            own.close()
            for output in self._outputs:
                output.close()
            raise
        finally:
            other.close()
            for fd in fds[1:3]:
                os.close(fd)
            if self.setup.store is not None:
                self.setup.store.close()
        self._loop.add_reader(self._pidfd, self._died, on_death)
        return own

    def _open_pidfd(self) -> int:
        try:
            return os.pidfd_open(self.pid)
        except OSError as error:
            # Kill the worker, which would wait forever for its greeting.
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise LaunchError(f"a worker could not be watched: {error}{limit_met(error)}") from error

    def _died(self, on_death: Callable[[], None]) -> None:
        exit_status = reap(self._pidfd, self._memory_kills)
        if exit_status is None:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.exit_status = exit_status
        # Kill the leftovers first, because they may write to the outputs forever.
        closes = (output.close for output in self._outputs)
        run_all(f"worker {self.setup.name}", (self._leftovers.end, *closes, on_death))

    def _all_gone(self) -> None:
        if not self.ended.done():
            assert self.exit_status is not None
            self.ended.set_result(self.exit_status)

    # -- close ------------------------------------------------------------------------------------------------

    def kill(self, reason: str = "") -> None:
        """Kill the process; ``reason`` replaces the signal in its exit report."""
        if self.exit_status is None and self.pid:
            self._kill_reason = reason or self._kill_reason
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send a signal to the process.  Raises ProcessLookupError if it has ended."""
        if self._pidfd < 0 or self.exit_status is not None:
            raise ProcessLookupError("it has ended")
        signal.pidfd_send_signal(self._pidfd, number)

    def stderr_tail(self) -> list[str]:
        """Return the last lines that the worker and its descendants wrote to stderr."""
        return self._outputs[1].last_lines()

    def exit_report(self, methods: list[str]) -> dict[str, Any]:
        """Return the facts about the death that ``WorkerDied`` takes."""
        assert self.exit_status is not None
        # The process may have died before the kill, for another reason.
        reason = self._kill_reason if self.exit_status.signal == "SIGKILL" else ""
        return {
            "group": self.setup.group,
            "rank": self.setup.rank,
            "node": self.node,
            "pid": self.pid,
            "verdict": reason or self.exit_status.text,
            "signal": self.exit_status.signal,
            "exit_code": self.exit_status.exit_code,
            "methods": methods,
            "last_words": self.stderr_tail(),
            "log_path": self.log_path,
            "log_lacks": log_lacks(self._outputs),
            "when": time.time(),
        }
