"""The clients that are active in this process: a driver's at the nodes of its clusters, a worker's own at its node.

What is made without ``cluster=...`` belongs to the only one that is active::

    registry.take(client)           the cluster is entered, or the worker begins; taken back when the client has ended
    registry.only_taken()           Channel.create(...), Worker.create_group(...).launch(...), Tracer.flush()

A child that is forked off has none: what was open is its parent's.
"""

from __future__ import annotations

import os
from typing import Protocol

from rlinf_async._client.client import NodeClient
from rlinf_async._core import process


class HasClient(Protocol):
    """A ``Cluster``."""

    _client: NodeClient


_taken: list[NodeClient] = []

_left: list[NodeClient] = []
"""In a forked child: those that its parent had taken."""


def take(client: NodeClient) -> None:
    """From here until its end the client may be meant where no cluster is named."""
    client.on_ended = _leave  # first: another thread may end the client at any time
    _taken.append(client)


def _leave(client: NodeClient) -> None:
    if client in _taken:
        _taken.remove(client)


def any_taken() -> bool:
    """Whether this process has an open cluster, or is a worker."""
    return bool(_taken)


def first_taken() -> NodeClient | None:
    """A worker's own client, or that of a driver's first open cluster."""
    return _taken[0] if _taken else None


def only_taken(what: str = "the cluster that was open here") -> NodeClient:
    """The client of the only run in which this process has an open cluster; of several there, the first.

    Args:
        what: is looked for it, for the error of a forked child: ``"channel 'obs'"``.

    Raises:
        RuntimeError: there is none, or there are several runs.
        ForkedProcessError: the one that was open when this process was forked is its parent's.
    """
    runs = {client.welcome.get("run", id(client)) for client in _taken}
    if len(runs) == 1:
        return _taken[0]
    if _left and not _taken:
        raise process.forked(what, _left[-1].pid)
    how_many = f"{len(runs)} clusters are" if runs else "no cluster is"
    raise RuntimeError(f"{how_many} open in this process: say which one is meant with cluster=...")


def client_of(cluster: HasClient | None) -> NodeClient:
    """The client of a cluster; without one as ``only_taken``."""
    return only_taken() if cluster is None else cluster._client


def taken_in(run: str, what: str) -> NodeClient:
    """The client of this process in a run; ``what`` as of ``only_taken``.

    Raises:
        RuntimeError: it has none there.
        ForkedProcessError: as ``only_taken``.
    """
    for client in _taken:
        if client.welcome.get("run") == run:
            return client
    for client in _left:
        if client.welcome.get("run") == run:
            raise process.forked(what, client.pid)
    raise RuntimeError(f"this process has no open cluster of run {run}")


def _leave_all_to_parent() -> None:
    _left.extend(_taken)
    _taken.clear()


os.register_at_fork(after_in_child=_leave_all_to_parent)
