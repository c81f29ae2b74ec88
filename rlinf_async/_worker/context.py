"""The global state of a worker process: its ``Identity``, daemon client and ``Exchange``; all None in a driver."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlinf_async._client.client import NodeClient
from rlinf_async._core import process
from rlinf_async._messaging.exchange import Exchange
from rlinf_async._worker.background import BackgroundTasks
from rlinf_async.address import WorkerAddress, WorkerInfo


@dataclass(frozen=True)
class Identity:
    """The identity of a worker process; the runtime sets it before it constructs the user's class."""

    info: WorkerInfo
    world_size: int
    group_name: str
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    config: str = field(default="", repr=False)  # the cluster's configuration as JSON; empty if the driver gave none

    @property
    def address(self) -> WorkerAddress:
        return self.info.address


identity: Identity | None = None  # identity of this process; None in a driver

client: NodeClient | None = None  # client of this worker process; None in a driver

exchange: Exchange | None = None  # exchange of this worker process; None in a driver

# Background tasks of this worker; None in a driver, and in a joined subprocess.
background: BackgroundTasks | None = None

_parent: Identity | None = None


def require_client() -> NodeClient:
    """Return this worker's client. Raise RuntimeError outside workers, ForkedProcessError in a forked child."""
    if client is None:
        raise _no_worker("this process is no worker")
    return client


def require_exchange() -> Exchange:
    """Return this worker's message exchange; raise the same errors as ``require_client``."""
    if exchange is None:
        raise _no_worker("only a worker has others to send to: this process is none")
    return exchange


def require_background() -> BackgroundTasks:
    """Return this worker's background tasks; raise the same errors as ``require_client``, even in a joined worker."""
    if background is None:
        raise _no_worker("background() is for a worker that was launched: this process is none")
    return background


def _no_worker(why: str) -> RuntimeError:
    if _parent is None:
        return RuntimeError(why)
    return process.forked(f"worker {_parent.address}", _parent.info.pid)


def forget() -> None:
    """Reset the state in a child forked by user code, which is not a worker; the client closes its own socket."""
    global identity, client, exchange, background, _parent
    _parent = identity or _parent
    identity = client = exchange = background = None
