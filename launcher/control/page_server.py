"""``PageServer``: serves a run's page, with live updates, over HTTP on 127.0.0.1 to clients that know its address.

    GET /TOKEN/           the page
    GET /TOKEN/events     server-sent events, each a message of ``page_data.py``, then ``end``

All other requests are refused, and so are host names other than this machine's own, because a foreign page could make
its own name resolve to this address. A client receives one message at a time, built from the latest snapshot. A slow
client skips snapshots, and a client that receives nothing for a minute is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from .page_data import Snapshot
from .page_document import PageDocument
from .page_feed import PageFeed

ADDRESS: Final = "127.0.0.1"

_HOSTS: Final = frozenset((ADDRESS, "localhost"))
_MAX_HEAD_BYTES: Final = 16 << 10
_MAX_CLIENTS: Final = 32
_TIMEOUT_S: Final = 60.0  # limit for a client to send its request, and to receive a piece of an answer
_PIECE_BYTES: Final = 64 << 10

_HEADERS: Final = (
    "Cache-Control: no-store",
    "Referrer-Policy: no-referrer",
    "X-Content-Type-Options: nosniff",
    "X-Frame-Options: DENY",
    "Cross-Origin-Resource-Policy: same-origin",
    "Connection: close",
)


class PageServer:
    """Server for one page; if ``feed`` is None, the page contains all its data."""

    def __init__(self, page: PageDocument, feed: PageFeed | None) -> None:
        self.token = secrets.token_urlsafe(24)
        self._page = page
        self._feed = feed
        self._clients: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"<PageServer [{len(self._clients)} clients]>"

    @asynccontextmanager
    async def serving(self, port: int) -> AsyncIterator[str]:
        """Serve the page; yield its address with the token.  Raises OSError if the port is taken."""
        server = await asyncio.start_server(self._connected, ADDRESS, port, limit=_MAX_HEAD_BYTES)
        try:
            yield f"http://{ADDRESS}:{server.sockets[0].getsockname()[1]}/{self.token}/"
        finally:
            server.close()
            clients = list(self._clients)
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # This is a plain function, because asyncio on Python 3.11 logs an error when it cancels a task that it created
        # for a coroutine function.
        client = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._clients.add(client)
        client.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # Errors of a client that disconnects or sends garbage affect only its own connection.
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                status, path = self._answer(head.decode("latin-1"))
                if status is not HTTPStatus.OK:
                    await _send(writer, _head(status, "text/plain") + f"{status} {status.phrase}\n".encode())
                elif path == "events":
                    await self._stream(reader, writer)
                else:
                    policy = f"Content-Security-Policy: {self._page.policy}; frame-ancestors 'none'"
                    await _send(writer, _head(status, "text/html", policy) + self._page.html.encode())
        finally:
            writer.close()

    def _answer(self, head: str) -> tuple[HTTPStatus, str]:
        """Return the status for a request, and the request's path below the token."""
        request, *lines = head.split("\r\n")
        method, _, rest = request.partition(" ")
        target = rest.partition(" ")[0].partition("?")[0]
        fields = [line.partition(":") for line in lines]
        hosts = [value.strip() for name, _, value in fields if name.strip().lower() == "host"]
        if len(hosts) != 1 or not _is_here(hosts[0]):
            return HTTPStatus.FORBIDDEN, ""
        _, _, below = target.partition("/")
        token, slash, path = below.partition("/")
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return HTTPStatus.FORBIDDEN, ""
        if not slash or path not in ("", "events") or (path and self._feed is None):
            return HTTPStatus.NOT_FOUND, ""
        if method != "GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, ""
        if len(self._clients) > _MAX_CLIENTS:
            return HTTPStatus.SERVICE_UNAVAILABLE, ""
        return HTTPStatus.OK, path

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._feed is not None
        with self._feed.watched():
            news = asyncio.ensure_future(self._send_news(self._feed, writer))
            # The client sends nothing after its request, so this read returns only when the client disconnects.
            gone = asyncio.ensure_future(reader.read())
            try:
                await asyncio.wait({news, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (news, gone):
                    task.cancel()
                await asyncio.gather(news, gone, return_exceptions=True)

    async def _send_news(self, feed: PageFeed, writer: asyncio.StreamWriter) -> None:
        await _send(writer, _head(HTTPStatus.OK, "text/event-stream"))
        known: Snapshot | None = None
        while (latest := await feed.newer(known)) is not None:
            message = await asyncio.to_thread(_message, latest, known)
            await _send(writer, message)
            known = latest
        await _send(writer, b"event: end\ndata: {}\n\n")


def _is_here(host: str) -> bool:
    try:
        return urlsplit(f"//{host}").hostname in _HOSTS  # tunnels change the port, so any port is accepted
    except ValueError:
        return False


def _message(latest: Snapshot, known: Snapshot | None) -> bytes:
    return b"data: " + json.dumps(latest.message(known), separators=(",", ":")).encode() + b"\n\n"


def _head(status: HTTPStatus, kind: str, *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status} {status.phrase}", f"Content-Type: {kind}; charset=utf-8", *_HEADERS, *more, "", ""]
    return "\r\n".join(lines).encode()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    try:
        for at in range(0, len(data), _PIECE_BYTES):
            async with asyncio.timeout(_TIMEOUT_S):
                writer.write(data[at : at + _PIECE_BYTES])
                await writer.drain()
    except TimeoutError:
        writer.transport.abort()  # close() would keep the buffer until the client reads it
        raise
