"""A guard that rejects process groups, forks, signals, subprocesses, connections and GPUs, which are not simulated."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list it

from rlinf_async._simulation.scheduler import Scheduler, SimulationError
from rlinf_async._simulation.stand_ins import replace


def _connection(sock: socket.socket, address: object) -> str | None:
    # Allow UNIX sockets, which the framework itself uses.
    return None if sock.family == socket.AF_UNIX else f"a connection to {address!r}"


_REFUSED: Final[tuple[tuple[Any, str, Callable[..., str | None]], ...]] = (
    (torch.distributed, "init_process_group", lambda *args, **_: "a process group of torch.distributed"),
    (TCPStore, "__init__", lambda *args, **_: "a store of torch.distributed"),
    (torch.cuda, "_lazy_init", lambda: "a GPU"),
    (os, "fork", lambda: "a forked process"),
    (os, "kill", lambda pid, number: f"signal {number:d}"),
    (subprocess.Popen, "__init__", lambda _, args, *rest, **__: f"the subprocess {args!r}"),
    (socket.socket, "connect", _connection),
    (socket.socket, "connect_ex", _connection),
)


@contextlib.contextmanager
def refused(scheduler: Scheduler) -> Iterator[None]:
    """Context manager: each unsimulated operation raises ``SimulationError`` on simulated threads."""

    def guard(real: Callable[..., Any], resource_name: Callable[..., str | None]) -> Callable[..., Any]:
        @functools.wraps(real)
        def refuse(*args: Any, **options: Any) -> Any:
            if not scheduler.in_simulation() or (name := resource_name(*args, **options)) is None:
                return real(*args, **options)
            requester = "a simulation" if scheduler.current is None else scheduler.current.name
            raise SimulationError(
                f"{requester} wants {name}, and a simulation has none; give the test a stand-in for it, "
                "or run it in a cluster of processes: Cluster(local_nodes=2)"
            )

        return refuse

    with contextlib.ExitStack() as stack:
        for place, attribute, resource_name in _REFUSED:
            stack.callback(replace(place, attribute, guard(getattr(place, attribute), resource_name)))
        yield
