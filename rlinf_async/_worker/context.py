"""Global state of a worker process: its ``Identity``, client of the daemon and ``Exchange``; none in a driver."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlinf_async._client.client import NodeClient
from rlinf_async._core import process
from rlinf_async._messaging.exchange import Exchange
from rlinf_async._worker.background import BackgroundTasks
from rlinf_async.address import WorkerAddress, WorkerInfo


@dataclass(frozen=True)
class Identity:
    """Who a worker process is; set by the runtime before the user's class is constructed."""

    info: WorkerInfo
    world_size: int
    group_name: str
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    config: str = field(default="", repr=False)
    """The cluster's configuration as JSON, where the driver gave one."""

    @property
    def address(self) -> WorkerAddress:
        return self.info.address


identity: Identity | None = None
"""Of this process; None in a driver."""

client: NodeClient | None = None
"""Of this worker process; None in a driver."""

exchange: Exchange | None = None
"""Of this worker process; None in a driver."""

background: BackgroundTasks | None = None
"""None in a driver, and in a subprocess that has joined."""

_parent: Identity | None = None
"""In a forked child: the worker that it was forked from."""


def require_client() -> NodeClient:
    """What this worker speaks to daemons with.

    Raises:
        RuntimeError: this process is no worker.
        ForkedProcessError: it is a forked child of one.
    """
    if client is None:
        raise _no_worker("this process is no worker")
    return client


def require_exchange() -> Exchange:
    """What this worker sends and receives with.

    Raises:
        RuntimeError: this process is no worker.
        ForkedProcessError: it is a forked child of one.
    """
    if exchange is None:
        raise _no_worker("only a worker has others to send to: this process is none")
    return exchange


def require_background() -> BackgroundTasks:
    """Where this worker's background tasks run.

    Raises:
        RuntimeError: this process was not launched as a worker.
        ForkedProcessError: it is a forked child of one.
    """
    if background is None:
        raise _no_worker("background() is for a worker that was launched: this process is none")
    return background


def _no_worker(why: str) -> RuntimeError:
    if _parent is None:
        return RuntimeError(why)
    return process.forked(f"worker {_parent.address}", _parent.info.pid)


def forget() -> None:
    """A forked child of user code is no worker; its copy of the socket is let go by the client."""
    global identity, client, exchange, background, _parent
    _parent = identity or _parent
    identity = client = exchange = background = None
