"""Registry of this process's active clients (a driver's clusters, a worker's own); selects the default client.

Objects created without ``cluster=...`` belong to the only active client::

    registry.activate(client)       the cluster is entered, or the worker begins; lasts until the client has ended
    registry.current()              Channel.create(...), Worker.create_group(...).launch(...), Tracer.flush()

A forked child has no active client, because the open clusters belong to its parent.
"""

from __future__ import annotations

import os
from typing import Protocol

from rlinf_async._client.client import NodeClient
from rlinf_async._core import process


class HasClient(Protocol):
    _client: NodeClient


_active: list[NodeClient] = []

_inherited: list[NodeClient] = []
"""Clients that were active in the parent of a forked child."""


def activate(client: NodeClient) -> None:
    # Set the callback first, because another thread may end the client at any time.
    client.on_ended = _deactivate
    _active.append(client)
    if client.closed is not None:  # it ended before the callback was set
        _deactivate(client)


def _deactivate(client: NodeClient) -> None:
    if client in _active:
        _active.remove(client)


def any_active() -> bool:
    return bool(_active)


def first_active() -> NodeClient | None:
    return _active[0] if _active else None


def current() -> NodeClient:
    """Return this process's client if all open clusters belong to one run; if there are several, the oldest.

    Raises:
        RuntimeError: no cluster is open, or clusters of several runs are open.
        ForkedProcessError: the cluster that was open when this process was forked belongs to its parent.
    """
    runs = {client.welcome.get("run", id(client)) for client in _active}
    if len(runs) == 1:
        return _active[0]
    if _inherited and not _active:
        raise process.forked("the cluster that was open here", _inherited[-1].pid)
    how_many = f"{len(runs)} clusters are" if runs else "no cluster is"
    raise RuntimeError(f"{how_many} open in this process: say which one is meant with cluster=...")


def client_of(cluster: HasClient | None) -> NodeClient:
    """Return the client of a cluster, or ``current()`` if no cluster is given."""
    return current() if cluster is None else cluster._client


def active_in(run: str, what: str) -> NodeClient:
    """Return this process's client in a run, or raise like ``current``; errors name ``what`` (``"channel 'obs'"``)."""
    for client in _active:
        if client.welcome.get("run") == run:
            return client
    for client in _inherited:
        if client.welcome.get("run") == run:
            raise process.forked(what, client.pid)
    raise RuntimeError(f"this process has no open cluster of run {run}")


def _leave_all_to_parent() -> None:
    _inherited.extend(_active)
    _active.clear()


os.register_at_fork(after_in_child=_leave_all_to_parent)
