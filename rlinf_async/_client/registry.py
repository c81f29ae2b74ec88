"""The seats that this process has taken: a driver's at the nodes of its clusters, a worker's own at its node.

What is made without ``cluster=...`` belongs to the only one that is open::

    seats.take(client)              the cluster is entered, or the worker begins
    seats.only_taken()              Channel.create(...), Worker.create_group(...).launch(...), Tracer.flush()
    seats.leave(client)             it has closed, for whatever reason

A child that is forked off has none: what was open is its parent's.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Protocol

from rlinf_async._core import process

if TYPE_CHECKING:
    from rlinf_async._client.client import NodeClient


class HasClient(Protocol):
    """A ``Cluster``."""

    _client: NodeClient


_clients: weakref.WeakSet[NodeClient] = weakref.WeakSet()
"""All that there are, also those that are not ready yet and those that have closed."""

_taken: list[NodeClient] = []

_left: list[NodeClient] = []
"""In a forked child: those that its parent had taken."""


def add(client: NodeClient) -> None:
    """A client is made; a child that is forked off from now on leaves its socket to the parent."""
    _clients.add(client)


def take(client: NodeClient) -> None:
    """From here on it may be meant where nobody says which one."""
    _taken.append(client)


def leave(client: NodeClient) -> None:
    """It has closed."""
    if client in _taken:
        _taken.remove(client)


def all_closed() -> bool:
    """Whether nothing can be sent by any of this process's clients any more."""
    return all(client.closed is not None for client in list(_clients))


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


def _leave_to_parent() -> None:
    for client in list(_clients):
        client.leave_to_parent()
    _left.extend(_taken)
    _taken.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
