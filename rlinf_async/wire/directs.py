"""The sockets that workers of this node have opened to this process, to be called and to answer without the daemon."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable
from typing import Any

from rlinf_async.wire.unix import Connection

OnReply = Callable[[int, list[Any], list[int]], None]


class Directs:
    """Connections by the endpoint at their other end; on the client's own loop.

    Args:
        on_reply: called with the endpoint, and a frame and its descriptors that came from there.
        on_gone: called with an endpoint whose socket is closed.
        open_connection: has a connection read; the client knows on which loops.
    """

    def __init__(self, on_reply: OnReply, make: Callable[..., Connection], on_gone: Callable[[int], None]) -> None:
        self._on_reply = on_reply
        self._on_gone = on_gone
        self._make = make
        self._connections: dict[int, Connection] = {}

    def find(self, source: int) -> Connection | None:
        """The way to a worker, if it has opened one."""
        return self._connections.get(source)

    def accept(self, source: int, fds: list[int]) -> None:
        """A worker has sent its socket; the daemon vouches for who it is."""
        sock = socket.socket(fileno=fds.pop())
        self._connections[source] = self._make(
            sock,
            on_frame=functools.partial(self._on_reply, source),
            on_closed=lambda reason: self._gone(source),
        )

    def _gone(self, source: int) -> None:
        self._connections.pop(source, None)
        self._on_gone(source)

    def drain(self, source: int) -> None:
        """Takes in everything that a worker still said before somebody else tells of its end."""
        connection = self._connections.get(source)
        if connection is not None:
            connection.drain()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def forget(self) -> None:
        """In a forked child."""
        for connection in self._connections.values():
            connection.forget()
        self._connections.clear()
