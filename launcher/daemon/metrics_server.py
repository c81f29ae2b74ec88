"""The HTTP server for a run's metrics: serves ``GET /metrics`` at one address, in the daemon's event loop.

Imported only on demand, because it imports ``prometheus_client``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from rlinf_async._core.own_logger import own_logger

from .metrics_text import CONTENT_TYPE, text_of

logger = own_logger(__name__)

_REQUEST_TIMEOUT_S: Final = 10.0
"""Seconds from the connection until the scraper must have received the answer."""

_MAX_CONNECTIONS: Final = 16

_MAX_REQUEST_BYTES: Final = 16 << 10


class MetricsServer:
    """Server that answers scrapes, one task per connection; ``ask`` collects all nodes' metrics for ``text_of``."""

    def __init__(self, ask: Callable[[], Awaitable[Mapping[str, Mapping[str, Any] | None]]]) -> None:
        self._ask = ask
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<MetricsServer [{len(self._tasks)} connections]>"

    async def open(self, host: str, port: int) -> str:
        """Listen; return the address with the port actually used.  Raises OSError if the address cannot be used."""
        self._server = await asyncio.start_server(self._connected, host, port, limit=_MAX_REQUEST_BYTES)
        chosen = self._server.sockets[0].getsockname()[1]
        return f"[{host}]:{chosen}" if ":" in host else f"{host}:{chosen}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= _MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(request.partition(b"\r\n")[0].split()))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            logger.info("a request for metrics was not answered: %s", error or "it took too long")
        except Exception:
            logger.exception("a request for metrics was not answered")
        finally:
            with contextlib.suppress(OSError):
                writer.transport.abort()

    async def _answer(self, request: list[bytes]) -> bytes:
        method, path = request[:2] if len(request) == 3 else (b"", b"")
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "text/plain", b"metrics are read with GET\n")
        if path.partition(b"?")[0] not in (b"/metrics", b"/"):
            return _response("404 Not Found", "text/plain", b"metrics are at /metrics\n")
        body = await text_of(await self._ask())
        return _response("200 OK", CONTENT_TYPE, body, hides_body=method == b"HEAD")


def _response(status: str, kind: str, body: bytes, *, hides_body: bool = False) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (b"" if hides_body else body)
