"""``HelloAdmission``: limits the number and age of local connections without a HELLO, evicting oldest first."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from rlinf_async import settings
from rlinf_async._core.own_logger import own_logger

from .endpoint import Endpoint

logger = own_logger(__name__)


class _NewConnection:
    """A connection without a HELLO; its endpoint is created when the first byte arrives."""

    __slots__ = ("endpoint", "sock", "timer")

    def __init__(self, sock: socket.socket, timer: asyncio.TimerHandle) -> None:
        self.sock = sock
        self.timer = timer
        self.endpoint: Endpoint | None = None


class HelloAdmission:
    """Connections that have not sent a HELLO yet.

    Above the limit, the oldest connection is evicted and the newest is accepted, so that silent connections cannot lock
    out a client that sends its HELLO immediately. The oldest is read before its eviction, because its HELLO may have
    arrived in this turn of the loop. A silent connection costs a descriptor but no buffers.

    Args:
        begin: starts reading a connection and returns its endpoint; raises OSError on failure.
        end: ends an endpoint and calls ``remove``.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        begin: Callable[[socket.socket], Endpoint],
        end: Callable[[Endpoint], None],
    ) -> None:
        self._loop = loop
        self._begin = begin
        self._end = end
        self._timeout = settings.GREETING_TIMEOUT_S()
        self._most = int(settings.UNAUTHENTICATED_CONNECTIONS())
        self._new_connections: dict[socket.socket, _NewConnection] = {}
        self._socks: dict[Endpoint, socket.socket] = {}
        self._ended = 0

    def __repr__(self) -> str:
        return f"<HelloAdmission [{len(self._new_connections)} of {self._most} connections have not said hello]>"

    def add(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._new_connections[sock] = _NewConnection(sock, self._loop.call_later(self._timeout, self._evict, sock))
        self._loop.add_reader(sock.fileno(), self._read_hello, sock)
        if len(self._new_connections) > self._most:
            self.end_oldest()

    def remove(self, endpoint: Endpoint) -> None:
        """Stop tracking an endpoint that has sent its HELLO or has ended."""
        sock = self._socks.pop(endpoint, None)
        if sock is not None:
            self._forget(sock)

    def end_oldest(self) -> bool:
        """Evict the oldest connection; return False if there is none."""
        for sock in self._new_connections:
            self._evict(sock)
            return True
        return False

    def close(self) -> None:
        while self.end_oldest():
            pass

    def _read_hello(self, sock: socket.socket) -> None:
        """Start reading a connection that has sent its first byte, or close one that hung up."""
        try:
            data = sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._loop.remove_reader(sock.fileno())
        if not data:
            self._close(sock)
            return
        try:
            endpoint = self._begin(sock)
        except OSError as error:
            logger.warning("a connection was refused: %s", error)
            self._close(sock)
            return
        self._new_connections[sock].endpoint = endpoint
        self._socks[endpoint] = sock

    def _evict(self, sock: socket.socket) -> None:
        new_connection = self._new_connections[sock]
        if new_connection.endpoint is None:
            self._read_hello(sock)
        endpoint = new_connection.endpoint
        if endpoint is not None and endpoint.connection is not None:
            endpoint.connection.drain()
        if sock in self._new_connections:
            self._ended += 1
            if endpoint is not None:
                self._end(endpoint)
            else:
                self._loop.remove_reader(sock.fileno())
                self._close(sock)

    def _close(self, sock: socket.socket) -> None:
        sock.close()
        self._forget(sock)

    def _forget(self, sock: socket.socket) -> None:
        self._new_connections.pop(sock).timer.cancel()
        if self._ended and not self._new_connections:
            ended, self._ended = self._ended, 0
            logger.warning("%d connections that did not say hello were ended", ended)
