"""The page's server: admission, and clients that are slow, silent or gone."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from rlinf_launcher.control import page_server
from rlinf_launcher.control.page_data import PageData, Snapshot
from rlinf_launcher.control.page_document import PageDocument
from rlinf_launcher.control.page_server import PageServer
from tests._support.made_run import made_run


class HandFed:
    """Feed with updates by the test."""

    def __init__(self) -> None:
        self.data = PageData()
        self.latest: Snapshot | None = None
        self.has_ended = False
        self.watchers = 0
        self.asked = 0
        self._changed = asyncio.Condition()

    async def tell(self, events: int = 1000, *, ends: bool = False) -> None:
        async with self._changed:
            self.latest, self.has_ended = self.data.snapshot(made_run(events)), ends
            self._changed.notify_all()

    async def newer(self, known: Snapshot | None) -> Snapshot | None:
        self.asked += 1
        async with self._changed:
            await self._changed.wait_for(lambda: self.latest is not known or self.has_ended)
            return None if self.latest is known else self.latest

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1


@contextlib.asynccontextmanager
async def served(feed: HandFed | None = None) -> AsyncIterator[tuple[PageServer, int]]:
    feeding: Any = feed
    server = PageServer(PageDocument("<p>the page</p>", "default-src 'none'"), feeding)
    async with server.serving(0) as address:
        yield server, int(address.split(":")[2].split("/")[0])


@contextlib.asynccontextmanager
async def asked(port: int, target: str, *fields: str, method: str = "GET") -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    try:
        head = [f"{method} {target} HTTP/1.1", *(fields or [f"Host: 127.0.0.1:{port}"]), "", ""]
        writer.write("\r\n".join(head).encode())
        yield reader
    finally:
        await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def answer(port: int, target: str, *fields: str, method: str = "GET") -> tuple[int, str]:
    async with asyncio.timeout(10), asked(port, target, *fields, method=method) as reader:
        text = (await reader.read()).decode()
    return int(text.split()[1]), text


async def message(reader: asyncio.StreamReader) -> Any:
    line = (await reader.readuntil(b"\n\n")).decode()
    return json.loads(line.partition("data: ")[2])


async def test_the_page_is_for_those_who_know_its_address() -> None:
    async with served() as (server, port):
        status, text = await answer(port, f"/{server.token}/")
        assert (status, text.endswith("<p>the page</p>")) == (200, True)
        assert "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\n" in text
        assert "Cache-Control: no-store" in text
        for target in ("/", "", "/favicon.ico", f"/{server.token[:-1]}/", "/é/", f"/x{server.token}/", "//"):
            assert (await answer(port, target))[0] == 403, target
        assert (await answer(port, f"/{server.token}"))[0] == 404
        assert (await answer(port, f"/{server.token}/other"))[0] == 404
        assert (await answer(port, f"/{server.token}/events"))[0] == 404, "it has all its data"
        assert (await answer(port, f"/{server.token}/", method="POST"))[0] == 405


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("Host: localhost:9", 200),
        ("host: LOCALHOST", 200),
        ("Host: evil.example", 403),
        ("Host: evil.example:80", 403),
        ("Host: 127.0.0.1.evil.example", 403),
        ("Host: evil.example@127.0.0.1", 403),
        ("Host: [::", 403),
        ("Host: ", 403),
        ("X: y", 403),
    ],
)
async def test_a_foreign_name_that_points_here_gets_nothing(host: str, status: int) -> None:
    if "@" in host:
        status = 200  # no browser sends this; the host it names is this machine
    async with served() as (server, port):
        assert (await answer(port, f"/{server.token}/", host))[0] == status


async def test_rubbish_and_endless_heads_end_with_their_connection() -> None:
    async with served() as (server, port):
        for data in (b"\r\n\r\n", b"GET\r\n\r\n", b"\xff\xfe\r\n\r\n", b"GET / HTTP/1.1\r\nHost: " + b"x" * 40_000):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            with contextlib.suppress(OSError):
                async with asyncio.timeout(10):
                    assert not (await reader.read()).startswith(b"HTTP/1.1 200")
            await closed(writer)
        assert (await answer(port, f"/{server.token}/"))[0] == 200


async def test_news_come_as_they_are_and_the_end_last() -> None:
    feed = HandFed()
    async with asyncio.timeout(20), served(feed) as (server, port), asked(port, f"/{server.token}/events") as reader:
        assert b"text/event-stream" in await reader.readuntil(b"\r\n\r\n")
        await feed.tell(1000)
        first = await message(reader)
        assert first["sections"].keys() >= {"summary", "phases"}
        await feed.tell(1000, ends=True)
        second = await message(reader)
        assert second["sections"] == {}, "nothing of it has changed"
        assert await reader.read() == b"event: end\ndata: {}\n\n"


async def test_a_client_that_goes_away_leaves_nothing() -> None:
    feed = HandFed()
    async with asyncio.timeout(20), served(feed) as (server, port):
        async with asked(port, f"/{server.token}/events") as reader:
            await reader.readuntil(b"\r\n\r\n")
            assert feed.watchers == 1
        while feed.watchers:  # until its end of file has been read
            await asyncio.sleep(0)
        assert (await answer(port, f"/{server.token}/"))[0] == 200


async def test_a_client_that_reads_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "_TIMEOUT_S", 0.5)
    feed = HandFed()
    await feed.tell()
    assert feed.latest is not None
    feed.latest = dataclasses.replace(feed.latest, logs={"more than a socket holds": "x" * (32 << 20)})
    async with asyncio.timeout(30), served(feed) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /{server.token}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        while not feed.asked:
            await asyncio.sleep(0)
        for _ in range(5):
            await feed.tell(1000)
        while feed.watchers:
            await asyncio.sleep(0.01)
        assert feed.asked == 1, "it was sent nothing after the message that it did not take"
        assert len(await reader.read()) < 32 << 20, "the rest is not held for it"
        await closed(writer)


async def test_a_slow_client_has_its_time_for_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    began, now = loop.time(), [loop.time()]
    monkeypatch.setattr(loop, "time", lambda: now[0])
    taken: list[bytes] = []

    class SlowClient:
        transport: Any = None

        def write(self, data: bytes) -> None:
            taken.append(data)

        async def drain(self) -> None:
            now[0] += 10 * page_server._TIMEOUT_S * len(taken[-1]) / len(page)
            for _ in range(3):
                await asyncio.sleep(0)  # a timeout that is due cancels here

    page, client = bytes(1 << 20), SlowClient()
    writer: Any = client
    await page_server._send(writer, page)
    assert b"".join(taken) == page
    assert now[0] - began == pytest.approx(10 * page_server._TIMEOUT_S)


async def test_too_many_clients_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "_MAX_CLIENTS", 1)
    feed = HandFed()
    async with served(feed) as (server, port), asked(port, f"/{server.token}/events") as reader:
        await reader.readuntil(b"\r\n\r\n")
        assert (await answer(port, f"/{server.token}/"))[0] == 503
