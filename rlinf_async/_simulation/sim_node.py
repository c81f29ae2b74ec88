"""``SimNode``, a simulated node: its daemon's process, and a launcher's control over it."""

from __future__ import annotations

import asyncio
import functools
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, cast

from rlinf_async._simulation.scheduler import Scheduler
from rlinf_async._simulation.sim_loop import LoopActor, SimLoop
from rlinf_async._simulation.sim_network import Fabric, SimNetwork
from rlinf_async._simulation.sim_process import SimProcess
from rlinf_async._simulation.sim_worker import SimTemplates, SimWorkerProcess
from rlinf_async._wire.node_config import NodeConfig
from rlinf_launcher.daemon.boot import Boot
from rlinf_launcher.daemon.guardian import _GRACE_S
from rlinf_launcher.daemon.node import Node
from rlinf_launcher.daemon.run_logs import RunLogs
from rlinf_launcher.daemon.templates import Templates


class SimDaemonControl:
    """A launcher's control over a simulated daemon."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self.events: list[dict[str, Any]] = []
        self.sigterm: Callable[[], None] | None = None
        self._commands: deque[dict[str, Any]] = deque()
        self._has_command = asyncio.Event()

    def send(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def find_event(self, event: str) -> dict[str, Any] | None:
        return next((each for each in self.events if each["event"] == event), None)

    def command(self, command: dict[str, Any]) -> None:
        self._commands.append(command)
        self._node.loop.call_soon(self._has_command.set)

    async def commands(self) -> AsyncGenerator[dict[str, Any], None]:
        while True:
            while self._commands:
                yield self._commands.popleft()
            self._has_command.clear()
            await self._has_command.wait()

    def on_sigterm(self, callback: Callable[[], None]) -> None:
        self.sigterm = callback

    def end_within(self, seconds: int) -> None:
        self._node.scheduler.after(seconds, self._node.kill)


class SimNode:
    def __init__(
        self,
        scheduler: Scheduler,
        fabric: Fabric,
        config: NodeConfig,
        folder: Path,
        new_pid: Callable[[], int],
        on_birth: Callable[[SimWorkerProcess], None],
        environ: dict[str, str],
        rate: float = 1.0,
    ) -> None:
        """``rate`` is the rate of the machine's clock."""
        self._rate = rate
        self._on_birth = on_birth
        self.scheduler = scheduler
        self.number = config.node
        self.process = SimProcess(scheduler, config.name, new_pid(), environ, rate)
        self.workers: list[SimWorkerProcess] = []
        self._fabric = fabric
        self.process.enter()
        self.loop = SimLoop(scheduler)
        self.control = SimDaemonControl(self)
        run_dir = folder / f"n{config.node}"
        run_dir.mkdir(mode=0o700)
        self.boot = Boot(config, run_dir, RunLogs(config.run, str(folder / "logs"), run_dir), b"")
        self._new_pid = new_pid
        self.network = SimNetwork(fabric, config.node, self.process, self.loop)
        self.process.actors.append(LoopActor(scheduler, self.process, self.loop, config.name))
        self.loop.call_soon(self._begin)
        self.task: asyncio.Task[None] | None = None
        self.node: Node | None = None

    def __repr__(self) -> str:
        return f"<SimNode {self.number} {self.process!r}>"

    def _begin(self) -> None:
        known = {"hostname": self.process.name, "python": "", "executable": "", "cpus": 8, "gpus": []}
        known |= {"accelerator_type": "NO_ACCEL", "rehearsed": False, "addresses": {}, "boot_id": "", "machine_id": ""}
        known |= {"time": 0.0}
        templates = cast(Templates, SimTemplates())
        new_process = functools.partial(self._new_process)
        self.node = Node(self.loop, self.boot, templates, known, self.control, self.network, new_process)
        self.task = self.loop.create_task(self.node.run(), name=f"{self.process.name}")

    def _new_process(self, *args: Any) -> SimWorkerProcess:
        worker = SimWorkerProcess(self.scheduler, self._new_pid, self._on_birth, self._rate, *args)
        self.workers.append(worker)
        return worker

    @property
    def lost(self) -> list[dict[str, Any]]:
        """Nodes that the daemon considers lost, as listed in its reports."""
        return [] if self.node is None else self.node._service.lost

    @property
    def has_ended(self) -> bool:
        return self.process.has_ended or (self.task is not None and self.task.done())

    def stop_for(self, seconds: float) -> None:
        """Stop the daemon, as if by SIGSTOP, and continue it later unless its guardian kills it first."""
        self.process.stop_for(seconds)
        assert self.node is not None
        root = self.node._router.node_links.get(0)
        if root is not None and seconds > (silent := 1.1 * root.lease + _GRACE_S):
            self.scheduler.after(silent, self.kill)

    def kill(self) -> None:
        """Kill the daemon, as if by SIGKILL; the kernel would kill its workers with it."""
        if self.has_ended:
            return
        assert self.node is not None
        for worker in self.workers:
            worker.kill()
        endpoints = self.node._router.endpoints.values()
        for endpoint in endpoints:
            if endpoint.pidfd >= 0:
                os.close(endpoint.pidfd)
        self.process.end([endpoint.connection for endpoint in endpoints if endpoint.connection is not None])
        self._fabric.end_node(self.number)
