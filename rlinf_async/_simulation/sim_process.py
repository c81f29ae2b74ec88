"""``SimProcess``, a process of a simulation: its globals, environment, loops, threads and sockets; its end."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Any, Final

from rlinf_async import channel
from rlinf_async._channels import registration
from rlinf_async._client import client, emulated_links, registry
from rlinf_async._client.loop_thread import LoopThread
from rlinf_async._core import own_start, process
from rlinf_async._core.wait_table import WaitTable
from rlinf_async._recorder import recording, user_metrics
from rlinf_async._simulation.scheduler import Scheduler
from rlinf_async._waits import loop_watch, slow_waits, unobserved_errors
from rlinf_async._worker import context
from rlinf_async.weights.links import socket_link, worker_link
from rlinf_async.weights.scope import Scope
from rlinf_async.worker import Worker

_GLOBALS: Final[tuple[tuple[Any, str], ...]] = (
    *((context, name) for name in ("identity", "client", "exchange", "background", "_parent")),
    *((registry, name) for name in ("_active", "_inherited")),
    (client, "_clients"),
    *((recording, name) for name in ("ring", "admits", "begin", "end", "point", "start_call", "finish_call", "_owner")),
    *((recording, name) for name in ("log", "_tracer")),
    (emulated_links, "here"),
    (process, "pid"),
    (own_start, "_start"),
    *((channel, name) for name in ("_channels", "_local_queues")),
    (worker_link, "_names"),
    *((loop_watch, name) for name in ("is_needed", "only")),
    *((slow_waits, name) for name in ("_listeners", "_loops", "_threads", "_until")),
    *((unobserved_errors, name) for name in ("_accounts", "_watches")),
    (user_metrics, "_warned"),
    (unobserved_errors, "ending_waits"),
    (registration, "_made"),
    (os.environ, "_data"),
)
"""Globals that each real process has separately, as pairs of a module or mapping and a name."""

_ON_CLASSES: Final = (
    (Scope, "_open"),
    *((socket_link._Hub, name) for name in ("current", "inherited")),
    *(
        (Worker, name)
        for name in ("current_worker", "logger", "PID", "accelerator_type", "torch_platform", "torch_device_type")
    ),
)
"""Class attributes that each real process has separately, as pairs of a class and a name."""

_TABLES: Final = tuple((vars(place), name) for place, name in _GLOBALS)


def _fresh(value: Any) -> Any:
    """Return a global's value in a new process: an empty container, None for a thread, else the value itself."""
    if isinstance(value, list | dict | set | weakref.WeakSet | weakref.WeakKeyDictionary | WaitTable):
        return type(value)()
    return None if isinstance(value, LoopThread) else value


class SimProcess:
    """A process of a simulation.

    Attributes:
        stopped_until: time until which no actor of the process runs.
        starved_until: time until which descriptors sent to it are lost.
        turn_s: virtual seconds that each turn takes.
        rate: seconds on the process's clock per virtual second.
        has_ended: True once no actor of the process will run again.
    """

    def __init__(self, scheduler: Scheduler, name: str, pid: int, environ: dict[str, str], rate: float = 1.0) -> None:
        self.name = name
        self.pid = pid
        self.stopped_until = -inf
        self.starved_until = -inf
        self.turn_s = 0.0
        self.rate = rate
        self.has_ended = False
        self.loops: list[Any] = []
        self.actors: list[Any] = []
        self.on_exit: Callable[[int], None] = lambda code: None
        """Callback that is called when the process exits by itself."""
        self._scheduler = scheduler
        self._globals = [_fresh(table[name]) for table, name in _TABLES]
        self._of_classes: list[Any] = [_fresh(getattr(place, name)) for place, name in _ON_CLASSES]
        self._globals[_GLOBALS.index((process, "pid"))] = pid
        self._globals[_GLOBALS.index((own_start, "_start"))] = (dict(environ), {})
        self._globals[-1] = {os.environ.encodekey(key): os.environ.encodevalue(each) for key, each in environ.items()}

    def __repr__(self) -> str:
        state = "ended" if self.has_ended else "stopped" if self.stopped_until > self._scheduler.now else "running"
        return f"<SimProcess {self.name} {state}>"

    def enter(self) -> None:
        current = self._scheduler.current
        if current is self:
            return
        if current is not None:
            current.keep()
        for (table, name), value in zip(_TABLES, self._globals, strict=True):
            table[name] = value
        for (place, name), value in zip(_ON_CLASSES, self._of_classes, strict=True):
            setattr(place, name, value)
        self._scheduler.current = self

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Context manager: installs this process's globals for the block, then the previous process's."""
        before = self._scheduler.current
        assert before is not None
        self.enter()
        try:
            yield
        finally:
            before.enter()

    def keep(self) -> None:
        self._globals = [table[name] for table, name in _TABLES]
        self._of_classes = [getattr(place, name) for place, name in _ON_CLASSES]

    def stop_for(self, seconds: float) -> None:
        self.stopped_until = self._scheduler.now + seconds

    def end(self, connections: Iterable[Any] = (), *sockets: Any) -> None:
        """End the process as the kernel does: threads stop, sockets are closed, and unsent data is lost."""
        self.has_ended = True
        for actor in self.actors:
            self._scheduler.remove(actor)
        for connection in connections:
            connection._writer.is_closed = connection.reader.is_stopped = True
            connection._writer.drop()
            sockets += (connection._socket.sock,)
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.close()
        # SIGKILL runs no code, but coroutines dropped with their loop run their `finally` blocks. With another
        # process's globals installed, such a block would change that process's environment.
        # tests/simulation/test_sim_deaths.py::test_a_death_changes_no_other_process
        with self._scheduler.grave.entered():
            for loop in self.loops:
                loop.end()
