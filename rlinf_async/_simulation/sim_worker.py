"""``SimWorkerProcess``, a worker of a simulated daemon: its threads and loops, and its death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlinf_async._core.worker_facts import read_worker
from rlinf_async._inspection import stack_pipe
from rlinf_async._simulation.scheduler import Scheduler, ThreadActor
from rlinf_async._simulation.sim_loop import LoopActor, SimIdleReader, SimLoop, SimSelector
from rlinf_async._simulation.sim_process import SimProcess
from rlinf_async._wire.unix import Connection
from rlinf_async._worker import process_main
from rlinf_async._worker.context import Identity
from rlinf_async._worker.runtime import Runtime
from rlinf_launcher.daemon.exit_status import ExitStatus
from rlinf_launcher.daemon.worker_process import WorkerProcess, WorkerSetup, WorkerStarter

_BIRTH_S = 0.05
"""Maximum virtual seconds that a process takes to start."""


class SimWorkerProcess(WorkerProcess):
    def __init__(
        self,
        scheduler: Scheduler,
        new_pid: Callable[[], int],
        on_birth: Callable[[SimWorkerProcess], None],
        rate: float,
        loop: asyncio.AbstractEventLoop,
        setup: WorkerSetup,
        node: str,
        log_dir: Path,
    ) -> None:
        super().__init__(loop, setup, node, log_dir)
        self._kill_reason = ""
        self._scheduler = scheduler
        self._new_pid = new_pid
        self._on_birth = on_birth
        self._rate = rate
        self._on_death: Callable[[], None] | None = None
        self._sock: socket.socket
        self._runtime: Runtime | None = None
        self._reader: SimIdleReader | None = None
        self.process: SimProcess

    async def start(self, template: WorkerStarter, on_death: Callable[[], None]) -> socket.socket:
        spec = self.setup.spec
        if self.setup.store is not None:
            self.setup.store.close()
        near, self._sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        born = self._loop.create_future()
        self._loop.call_later(self._scheduler.random.uniform(0, _BIRTH_S), born.set_result, None)
        try:
            await born
        except BaseException:
            near.close()
            self._sock.close()
            raise
        self.pid = self._new_pid()
        self._on_death = on_death
        name = f"{self.setup.group}:{self.setup.rank}"
        self.process = SimProcess(self._scheduler, name, self.pid, dict(spec["env"]), self._rate)
        self.process.on_exit = lambda code: self._exit(ExitStatus(exit_code=code))
        self._scheduler.note(name, f"starts on {self.node}, pid {self.pid}")
        host = ThreadActor(self._scheduler, self.process, name, self._run_worker)
        self.process.actors.append(host)
        self._host = host
        self._on_birth(self)
        return near

    def _run_worker(self) -> None:
        spec = self.setup.spec
        selector, socket_selector = SimSelector(), SimSelector()
        loop = SimLoop(self._scheduler, selector)
        asyncio.set_event_loop(loop)
        socket_loop = SimLoop(self._scheduler, socket_selector)
        self._reader = SimIdleReader(self._scheduler, self._host, loop, socket_selector)
        info = read_worker({**spec["info"], "pid": self.pid})
        identity = Identity(info, spec["world_size"], spec["group"], dict(spec["env"]), spec.get("config", ""))
        self._runtime = process_main.assemble(self._sock, spec, identity, socket_loop, self._reader, os._exit)
        self.process.actors.append(
            LoopActor(self._scheduler, self.process, socket_loop, f"{self.process.name} (sockets)")
        )
        code = self._runtime.serve()
        self._runtime.background.end_process(self._runtime.client)
        self._runtime.direct_callers.flush_blocking(0)
        self._runtime.client.flush_at_exit(0)
        self._exit(ExitStatus(exit_code=code))

    def _exit(self, exit_status: ExitStatus) -> None:
        if self.process.has_ended:
            return
        self._scheduler.note(self.process.name, f"pid {self.pid} {exit_status.text}")
        connections: list[Any] = []
        if self._runtime is not None:
            self._runtime.direct_callers._granted = False  # code run during the exit must not open another socket
            connections = [*filter(None, (*self.connections(), self._runtime.client._connection))]
            os.close(self._runtime._alarm)
            if self._runtime.client.closed is None:
                stack_pipe.release()  # held since the worker's own hello
        if self._reader is not None:
            self._reader.forget()
        self.process.end(connections, self._sock)
        self._loop.call_soon_threadsafe(self._report_death, exit_status)

    def _report_death(self, exit_status: ExitStatus) -> None:
        self.exit_status = exit_status
        self.ended.set_result(exit_status)
        assert self._on_death is not None
        self._on_death()

    def kill(self, reason: str = "") -> None:
        if self.exit_status is None and self.pid and not self.process.has_ended:
            self._kill_reason = reason or self._kill_reason
            self._exit(ExitStatus(signal="SIGKILL"))

    def connections(self) -> list[Connection]:
        if self._runtime is None:
            return []
        client = self._runtime.client
        found = [*client.direct_sockets.connections.values()]
        if client.own_direct_sockets is not None:
            found += client.own_direct_sockets.connections.values()
        return [connection for connection in found if connection is not None]

    def sever(self, how: str) -> None:
        for connection in self.connections():
            if (fd := connection.fileno()) < 0:
                continue
            if how == "shutdown":
                with contextlib.suppress(OSError):  # the socket may already be broken
                    connection._socket.sock.shutdown(socket.SHUT_RDWR)
            else:
                # Keep the descriptor's number in use: if another file got this number, the frames would be written to
                # that file.
                null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                os.dup2(null, fd, inheritable=False)
                os.close(null)

    def send_signal(self, number: int) -> None:
        if self.exit_status is not None or not self.pid:
            raise ProcessLookupError("it has ended")
        if number == signal.SIGKILL:
            self.kill()

    def stderr_tail(self) -> list[str]:
        return []


class SimTemplates:
    """A stand-in for a daemon's templates, which forks nothing."""

    python = "python"
    open_files = 1024
    flags = ()

    def get(self, environment: Mapping[str, str] | None = None, python: str | None = None) -> Any:
        return self

    async def fork(self, spec: Mapping[str, Any], fds: Sequence[int]) -> int:
        raise AssertionError("a simulated worker is not forked")

    @contextlib.asynccontextmanager
    async def preloaded(self, plain: Any, wanted: Any, on_refused: Any) -> AsyncIterator[Any]:
        yield plain

    def status(self) -> dict[str, Any]:
        return {}

    def describe(self) -> str:
        return ""

    def close(self) -> None:
        pass
