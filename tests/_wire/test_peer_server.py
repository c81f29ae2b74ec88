"""Admission of peers: nodes of the run only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import msgpack
import pytest

from rlinf_async._core.frames import PROTOCOL
from rlinf_async._wire import credentials as credentials_module
from rlinf_async._wire.credentials import NodeCredentials, RunAuthority, node_name
from rlinf_async._wire.daemon_link import MAX_MESSAGE_BYTES
from rlinf_async._wire.dial import dial
from rlinf_async._wire.hello import Hello
from rlinf_async._wire.peer_server import PeerServer
from rlinf_async.errors import AuthError, NodeLost, VersionMismatch
from tests._support.daemon_link_pairs import (
    AUTHORITY,
    RUN,
    Owner,
    Server,
    both_loops,
    either_loop,
    grpc,
)

pytestmark = both_loops
event_loop_policy = either_loop


@contextmanager
def made_days_ago(days: int):
    """Certificates issued in here are as if issued then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(credentials_module, "_now", lambda: datetime.now(UTC) - timedelta(days=days))
        yield


def _stranger() -> NodeCredentials:
    return RunAuthority(RUN).issue(0)


def _forged() -> NodeCredentials:
    return replace(_stranger(), ca=AUTHORITY.issue(0).ca)


def _expired() -> NodeCredentials:
    with made_days_ago(400):
        return AUTHORITY.issue(0)


@pytest.mark.parametrize(
    ("make", "fault"),
    [(_stranger, "another run"), (_forged, "not signed by the authority of this run"), (_expired, "has expired")],
)
async def test_a_client_with_the_wrong_certificate_learns_why_and_the_server_hears_nothing(
    make: Callable[[], NodeCredentials], fault: str
):
    async with Server() as server:
        with pytest.raises(AuthError, match=fault):
            await server.dialled(issued=make())
        assert server.accepted.empty()


async def test_a_server_with_an_expired_certificate_is_called_expired():
    with made_days_ago(400):
        issued = AUTHORITY.issue(1)
    async with Server(issued) as server:
        with pytest.raises(AuthError, match="expired"):
            await server.dialled()


async def test_another_node_at_the_address_is_not_taken_for_the_one_that_was_meant():
    async with Server() as server:
        with pytest.raises(AuthError, match=f"node-2.{RUN}.*mismatch"):
            await server.dialled(peer=2)
        assert server.accepted.empty()


async def test_a_node_cannot_call_itself_another():
    async with Server() as server:
        with pytest.raises(AuthError, match=f"calls itself node 0, but its certificate names node-7.{RUN}"):
            await server.dialled(node=0, issued=AUTHORITY.issue(7))
        assert server.accepted.empty()


async def test_a_node_has_one_link_only():
    async with Server() as server:
        first = Owner(await server.dialled())
        accepted = Owner(await server.accepted.get())
        assert len(server.peer_server._handlers) == 2  # one for each stream: `stop` waits for them
        with pytest.raises(AuthError, match="node 0 has a link to node 1 already"):
            await server.dialled()
        first.link.send(b"still here")
        await accepted.until(lambda: accepted.control == b"still here")
        await first.link.close()
        again = await server.dialled()  # a closed link makes room
        await again.close()


class Canary:
    loaded: ClassVar[list[str]] = []

    def __reduce__(self) -> Any:
        return self.loaded.append, ("loaded",)


async def test_without_a_certificate_nobody_gets_as_far_as_a_handler(capfd: pytest.CaptureFixture[str]):
    hostile = pickle.dumps(Canary())
    async with Server() as server:
        anonymous = grpc.ssl_channel_credentials(AUTHORITY.issue(0).ca.encode())
        override = [("grpc.ssl_target_name_override", node_name(RUN, 1))]
        for channel in (
            grpc.aio.secure_channel(f"ipv4:{server.address}", anonymous, options=override),
            grpc.aio.insecure_channel(f"ipv4:{server.address}"),
        ):
            for method in ("Control", "Bulk"):
                call = channel.stream_stream(f"/rlinf.Node/{method}")()
                with pytest.raises((grpc.RpcError, asyncio.InvalidStateError)):
                    await call.write(hostile)
                assert await call.code() is grpc.StatusCode.UNAVAILABLE
            await channel.close()
        assert not server.peer_server._handlers
        assert server.accepted.empty()
        await (await server.dialled()).close()
    assert Canary.loaded == []
    assert capfd.readouterr() == ("", "")


def _hello(**changes: Any) -> bytes:
    """Node 0's Hello, changed; a field set to None is left out.  Far from now, which only causes a warning."""
    own = asdict(Hello.own(RUN, 0))
    return msgpack.packb({field: value for field, value in (own | changes).items() if value is not None})


PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


NO_HELLO = ["something else than a Hello"]
BAD_HELLOS = [
    (pickle.dumps(Canary()), "UNAUTHENTICATED", NO_HELLO),
    (b"\xc1", "UNAUTHENTICATED", NO_HELLO),
    (_hello(magic="http"), "UNAUTHENTICATED", NO_HELLO),
    (_hello(padding=["x" * 255] * 16, more=["x" * 255] * 300), "UNAUTHENTICATED", NO_HELLO),
    (_hello(version="x" * 300), "UNAUTHENTICATED", NO_HELLO),
    (_hello(time=msgpack.ExtType(5, b"code")), "UNAUTHENTICATED", NO_HELLO),
    (_hello(node="0"), "UNAUTHENTICATED", ["node is no int"]),
    (_hello(node=True), "UNAUTHENTICATED", ["node is no int"]),
    (_hello(time=None), "UNAUTHENTICATED", ["time is no float"]),
    (_hello(node=3), "UNAUTHENTICATED", ["calls itself node 3", f"node-0.{RUN}"]),
    (_hello(node=-1), "UNAUTHENTICATED", ["calls itself node -1"]),
    (_hello(run="ffffffff"), "UNAUTHENTICATED", ["'ffffffff'", f"'{RUN}'"]),
    (_hello(protocol=99, version="9.9"), "FAILED_PRECONDITION", ["protocol 99", "9.9", f"protocol {PROTOCOL}"]),
    (_hello(received=[1]), "UNAUTHENTICATED", ["received is no two numbers"]),
    (_hello(received=[1, -1]), "UNAUTHENTICATED", ["received is no two numbers"]),
    (_hello(received=[1, 1]), "UNAUTHENTICATED", ["node 1 has no link to node 0 any more"]),
    (_hello(python="3.9"), "FAILED_PRECONDITION", ["node 0 runs Python 3.9", f"node 1 runs Python {PYTHON}"]),
    (_hello(python="\x1b[2J\n"), "FAILED_PRECONDITION", [r"\x1b[2J\n"]),
    (_hello(padding=[["x" * 255] * 16] * 16), "UNAUTHENTICATED", NO_HELLO),  # no part is too large, the whole is
    (bytes(MAX_MESSAGE_BYTES + 1), "RESOURCE_EXHAUSTED", []),
]


async def test_a_bad_hello_is_refused_in_words_that_both_sides_see(caplog: pytest.LogCaptureFixture):
    async with Server() as server:
        channel = await server.raw_channel()
        for hello, code, texts in BAD_HELLOS:
            caplog.clear()
            call = channel.stream_stream("/rlinf.Node/Control")()
            await call.write(hello)
            async with asyncio.timeout(5):
                assert (await call.code()).name == code, hello[:80]
            for text in texts:
                assert text in await call.details()
                assert text in caplog.text
        await channel.close()
        assert server.accepted.empty()
    assert Canary.loaded == []


async def test_nothing_is_accepted_before_a_hello(caplog: pytest.LogCaptureFixture):
    async with Server() as server:
        channel = await server.raw_channel()
        call = channel.stream_stream("/rlinf.Node/Bulk")()
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "before a Hello" in await call.details()
        call = channel.stream_stream("/rlinf.Node/Spawn")()
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        await channel.close()
        assert server.accepted.empty()


async def ends(sockets: Iterable[socket.socket]) -> None:
    """Returns once the far side has closed all of them."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(10):
        for sock in sockets:
            with contextlib.suppress(ConnectionError):
                assert await loop.sock_recv(sock, 1) == b""


def knock(address: str, count: int) -> list[socket.socket]:
    """Connections that say nothing."""
    host, _, port = address.rpartition(":")
    sockets = [socket.create_connection((host, int(port))) for _ in range(count)]
    for sock in sockets:
        sock.setblocking(False)
    return sockets


async def test_silent_connections_are_few_and_have_a_deadline():
    async with Server(greeting_timeout=1.0, most_connections=8) as server:
        with contextlib.ExitStack() as stack:
            files = len(os.listdir("/proc/self/fd"))
            sockets = [stack.enter_context(sock) for sock in knock(server.address, 50)]
            await ends(sockets[8:])
            assert len(os.listdir("/proc/self/fd")) <= files + 50 + 8 + 4  # and what an event loop needs
            await ends(sockets[:8])
        await (await server.dialled()).close()


@pytest.mark.parametrize("words", [[], [_hello()]], ids=["no Hello", "no bulk stream"])
async def test_a_silent_peer_is_shown_the_door(words: list[bytes], caplog: pytest.LogCaptureFixture):
    async with Server(greeting_timeout=1.0) as server:
        channel = await server.raw_channel()
        call = channel.stream_stream("/rlinf.Node/Control")()
        for word in words:
            await call.write(word)
            assert await call.read() is not grpc.aio.EOF
        async with asyncio.timeout(5):
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "within 1 s" in await call.details()
        await channel.close()
        assert server.accepted.empty()
        await (await server.dialled()).close()


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        ({"python": "3.9"}, VersionMismatch, f"node 1 runs Python 3.9.*node 0 runs Python {PYTHON}"),
        ({"protocol": 99}, VersionMismatch, f"node 1 speaks protocol 99.*node 0 speaks protocol {PROTOCOL}"),
        ({"run": "ffffffff"}, AuthError, "ffffffff"),
        ({"node": 4}, AuthError, "calls itself node 4"),
    ],
)
async def test_the_side_that_dials_checks_the_hello_too(answer: dict[str, Any], error: type[Exception], text: str):
    async def serve(_requests: Any, context: Any) -> None:
        await context.read()
        await context.write(_hello(**({"node": 1} | answer)))
        await context.read()

    async with raw_server(serve) as address:
        with pytest.raises(error, match=text):
            await dial(address, node=0, peer=1, run=RUN, credentials=AUTHORITY.issue(0), timeout=5)


async def test_a_peer_without_a_bulk_stream_is_no_link():
    async def serve(_requests: Any, context: Any) -> None:
        await context.read()
        await context.write(_hello(node=1))
        await context.read()

    async with raw_server(serve) as address:
        with pytest.raises(NodeLost, match=address):
            await dial(address, node=0, peer=1, run=RUN, credentials=AUTHORITY.issue(0), timeout=5)


async def test_credentials_that_are_none_are_refused_on_either_side():
    broken = NodeCredentials("no", "certificate", "here")
    with pytest.raises(AuthError, match="own credentials"):
        await PeerServer(1, RUN, broken, "127.0.0.1", lambda link: None).start()
    async with Server() as server:
        with pytest.raises(AuthError, match="own credentials"):
            await server.dialled(issued=broken)


@asynccontextmanager
async def raw_server(serve: Callable[..., Any]) -> AsyncIterator[str]:
    """A gRPC server with node 1's certificate that does as it likes."""
    own = AUTHORITY.issue(1)
    server = grpc.aio.server()
    methods = {"Control": grpc.stream_stream_rpc_method_handler(serve)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("rlinf.Node", methods),))
    identity = grpc.ssl_server_credentials([(own.key.encode(), own.cert.encode())], own.ca.encode(), True)
    port = server.add_secure_port("127.0.0.1:0", identity)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
        while others := asyncio.all_tasks() - {asyncio.current_task()}:  # gRPC's own, on their way out
            await asyncio.wait(others)


async def test_a_clock_that_differs_is_worth_a_warning(caplog: pytest.LogCaptureFixture):
    async with Server() as server:
        channel = await server.raw_channel()
        call = channel.stream_stream("/rlinf.Node/Control")()
        await call.write(_hello(time=time.time() - 60))
        assert await call.read() is not grpc.aio.EOF
        assert "the clocks of node 0 and node 1 differ by -60 s" in caplog.text
        call.cancel()
        await channel.close()
