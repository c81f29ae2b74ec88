"""Both ends of a link between daemons, over real gRPC on the loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from rlinf_async._wire import grpc as module
from rlinf_async._wire.credentials import NodeCredentials, RunAuthority, node_name
from rlinf_async._wire.daemon_link import PeerLink
from rlinf_async._wire.dial import dial
from rlinf_async._wire.peer_server import PeerServer

grpc = module.grpc
RUN = "0a1b2c3d"
AUTHORITY = RunAuthority(RUN)
PIECE = 256 << 10

# Both loops for every test of some files only (``event_loop_policy = either_loop``); pytest-asyncio's newer hook would
# need a conftest for all of them.
both_loops = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture:DeprecationWarning")


@pytest.fixture(
    params=[asyncio.DefaultEventLoopPolicy(), uvloop.EventLoopPolicy()], ids=["asyncio", "uvloop"], scope="module"
)
def either_loop(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return request.param


once = pytest.mark.parametrize("event_loop_policy", [asyncio.DefaultEventLoopPolicy()], ids=[""], indirect=True)


class Owner:
    """Who uses a link: keeps what arrives, and lets a test wait for it."""

    def __init__(self, link: PeerLink | None = None) -> None:
        self.control = b""
        self.control_messages = 0
        self.bulk: list[bytes] = []
        self.lost: list[str] = []
        self._changed = asyncio.Event()
        if link is not None:
            self.adopt(link)

    def adopt(self, link: PeerLink) -> None:
        self.link = link
        link.on_control = self._on_control
        link.on_bulk = self._on_bulk
        link.on_lost = self._on_lost

    def _on_control(self, data: bytes) -> None:
        self.control += data
        self.control_messages += 1
        self._changed.set()

    def _on_bulk(self, piece: bytes) -> None:
        self.bulk.append(piece)
        self._changed.set()

    def _on_lost(self, reason: str) -> None:
        self.lost.append(reason)
        self._changed.set()

    async def until(self, condition: Callable[[], Any], timeout: float = 20) -> None:
        async with asyncio.timeout(timeout):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class Accepted(asyncio.Queue[PeerLink]):
    """Links in the order in which they were accepted; one that does not come is an error of its test."""

    async def get(self) -> PeerLink:
        async with asyncio.timeout(10):
            return await super().get()


class Server:
    """Node 1 of the run, and who uses the links that it accepts."""

    def __init__(self, issued: NodeCredentials | None = None, bind: str = "127.0.0.1", **options: Any) -> None:
        self.accepted = Accepted()
        self.peer_server = PeerServer(1, RUN, issued or AUTHORITY.issue(1), bind, self.accepted.put_nowait, **options)
        self.address = ""

    async def __aenter__(self) -> Server:
        self.address = await self.peer_server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.peer_server.stop()

    async def dialled(self, node: int = 0, issued: NodeCredentials | None = None, **options: Any) -> PeerLink:
        options = {"peer": 1, "timeout": 5} | options
        return await dial(self.address, node=node, run=RUN, credentials=issued or AUTHORITY.issue(node), **options)

    async def raw_channel(self, node: int = 0) -> Any:
        """A gRPC client that belongs to the run but does as it likes."""
        own = AUTHORITY.issue(node)
        identity = grpc.ssl_channel_credentials(own.ca.encode(), own.key.encode(), own.cert.encode())
        options = [("grpc.ssl_target_name_override", node_name(RUN, 1)), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(f"ipv4:{self.address}", identity, options=options)


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Owner, Owner]]:
    """Both ends of a link: who dialled, who accepted."""
    async with Server() as server:
        link = await server.dialled()
        owners = Owner(link), Owner(await server.accepted.get())
        try:
            yield owners
        finally:
            await link.close()


async def pour(link: PeerLink, pieces: int) -> None:
    for number in range(pieces):
        await link.send_bulk(number.to_bytes(4) + bytes(PIECE - 4))
        assert len(link._bulk) <= 4
