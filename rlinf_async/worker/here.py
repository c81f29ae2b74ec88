"""This process as a worker: who it is, and what it speaks to others with."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlinf_async.address import WorkerAddress, WorkerInfo
from rlinf_async.seat.client import NodeClient
from rlinf_async.worker.exchange import Exchange


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


def require_client() -> NodeClient:
    """What this worker speaks to daemons with.

    Raises:
        RuntimeError: this process is no worker.
    """
    if client is None:
        raise RuntimeError("this process is no worker (a forked child of one, perhaps)")
    return client


def require_exchange() -> Exchange:
    """What this worker sends and receives with.

    Raises:
        RuntimeError: this process is no worker.
    """
    if exchange is None:
        raise RuntimeError("only a worker has others to send to: this process is none (a forked child of one, perhaps)")
    return exchange


def forget() -> None:
    """A forked child of user code is no worker; its copy of the socket is let go by the client."""
    global identity, client, exchange
    identity = client = exchange = None
