"""Links between daemons, over real gRPC on the loopback; what dies or freezes is a process of its own."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import pickle
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import msgpack
import psutil
import pytest
import uvloop

from rlinf_async.errors import AuthError, ClosedError, ConfigError, LaunchError, NodeLost, VersionMismatch
from rlinf_async.wire import credentials as credentials_module
from rlinf_async.wire import grpc as module
from rlinf_async.wire import link as link_module
from rlinf_async.wire import peer_server as peer_server_module
from rlinf_async.wire.credentials import NodeCredentials, RunAuthority, node_name
from rlinf_async.wire.dial import dial
from rlinf_async.wire.hello import Hello
from rlinf_async.wire.link import MAX_MESSAGE, PeerLink
from rlinf_async.wire.peer_server import PeerServer

grpc = module.grpc
RUN = "0a1b2c3d"
AUTHORITY = RunAuthority(RUN)
PIECE = 256 << 10

# Both loops for every test of this file only; pytest-asyncio's newer hook would need a conftest for all of them.
pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture:DeprecationWarning")


@pytest.fixture(
    params=[asyncio.DefaultEventLoopPolicy(), uvloop.EventLoopPolicy()], ids=["asyncio", "uvloop"], scope="module"
)
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return request.param


once = pytest.mark.parametrize("event_loop_policy", [asyncio.DefaultEventLoopPolicy()], ids=[""], indirect=True)


class Owner:
    """Who uses a link: keeps what arrives, and lets a test wait for it."""

    def __init__(self, link: PeerLink | None = None) -> None:
        self.control = b""
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


class Server:
    """Node 1 of the run, and who uses the links that it accepts."""

    def __init__(self, issued: NodeCredentials | None = None, bind: str = "127.0.0.1", **options: Any) -> None:
        self.accepted: asyncio.Queue[PeerLink] = asyncio.Queue()
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


# --- What a link carries ---------------------------------------------------------------------------------------


async def test_bytes_go_both_ways_on_both_streams():
    async with pair() as (left, right):
        assert (left.link.peer, right.link.peer) == (1, 0)
        for here, there in ((left, right), (right, left)):
            here.link.send(b"call")
            await here.link.send_bulk(b"piece")
            await there.until(lambda there=there: there.control == b"call" and there.bulk == [b"piece"])
            assert here.link.messages_sent == 2
            assert here.link.bytes_sent == 9
            assert there.link.messages_received == 2


async def test_a_thousand_sends_leave_in_one_message():
    async with pair() as (left, right):
        sent = [b"%099d\n" % number for number in range(1000)]
        for data in sent:
            left.link.send(data)
        await right.until(lambda: len(right.control) == 100_000)
        assert right.control == b"".join(sent)
        assert left.link.messages_sent == right.link.messages_received == 1


async def test_a_long_queue_leaves_in_messages_of_at_most_256_kib():
    async with pair() as (left, right):
        sizes: list[int] = []
        right.link.on_control = lambda data: (sizes.append(len(data)), right._on_control(data))[0]
        sent = [bytes([number % 256]) * 1000 for number in range(1000)] + [os.urandom(600_000), b"end"]
        for data in sent:
            left.link.send(data)
        await right.until(lambda: len(right.control) == 1_600_003)
        assert right.control == b"".join(sent)
        assert max(sizes) <= PIECE
        assert len(sizes) <= 8


async def test_order_holds_in_both_directions_at_once():
    async with pair() as (left, right):
        sent: dict[Owner, list[bytes]] = {left: [], right: []}

        async def talk(owner: Owner) -> None:
            for number in range(500):
                data = b"%d." % number * (number % 7 + 1)
                sent[owner].append(data)
                owner.link.send(data)
                await owner.link.send_bulk(data)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(talk(left))
            tasks.create_task(talk(right))
        for here, there in ((left, right), (right, left)):
            await there.until(lambda here=here, there=there: there.bulk == sent[here])
            await there.until(lambda here=here, there=there: there.control == b"".join(sent[here]))


async def test_a_call_overtakes_the_bulk_that_was_sent_before_it():
    async with pair() as (left, right):
        right.link.on_control = right.link.send  # an echo

        async def pour() -> None:
            piece = bytes(PIECE)
            for _ in range(256):
                await left.link.send_bulk(piece)

        pouring = asyncio.create_task(pour())
        await right.until(lambda: right.bulk)
        times = []
        while not pouring.done() and len(times) < 20:
            start, known = time.perf_counter(), len(left.control)
            left.link.send(b"echo")
            await left.until(lambda known=known: len(left.control) > known)
            times.append(time.perf_counter() - start)
        assert len(times) >= 10, "the echoes waited for the bulk"
        assert statistics.median(times) < 0.1
        await pouring
        await right.until(lambda: len(right.bulk) == 256)


async def test_bulk_waits_for_the_network_instead_of_filling_memory():
    async with Server() as server:
        link = await server.dialled()
        pouring = asyncio.create_task(_pour(link, 400))
        accepted = await server.accepted.get()
        assert len(link._bulk) <= 4
        right, left = Owner(accepted), Owner(link)
        await right.until(lambda: len(right.bulk) == 400)
        await pouring
        assert [piece[:4] for piece in right.bulk] == [number.to_bytes(4) for number in range(400)]
        await link.close()
        assert left.lost == []


async def _pour(link: PeerLink, pieces: int) -> None:
    for number in range(pieces):
        await link.send_bulk(number.to_bytes(4) + bytes(PIECE - 4))
        assert len(link._bulk) <= 4


async def test_nothing_that_arrives_before_the_owner_listens_is_lost():
    async with Server() as server:
        link = await server.dialled()
        accepted = await server.accepted.get()
        accepted.send(b"early")
        await accepted.send_bulk(b"bird")
        other = await server.dialled(node=2)  # by now both have arrived
        left = Owner(link)
        await left.until(lambda: left.control == b"early" and left.bulk == [b"bird"])
        await link.close()
        await other.close()


async def test_who_begins_to_listen_after_the_end_is_told_of_it():
    async with Server() as server:
        link = await server.dialled()
        await link.close()
        right = Owner(await server.accepted.get())
        await right.until(lambda: right.lost)
        await right.link.close()
        assert right.lost == ["closed"]


@pytest.mark.parametrize("size", [0, MAX_MESSAGE + 1])
async def test_a_piece_that_grpc_would_choke_on_is_refused_before_it_leaves(size: int):
    async with pair() as (left, right):
        with pytest.raises(ValueError, match=str(size)):
            await left.link.send_bulk(bytes(size))
        left.link.send(b"")
        await left.link.send_bulk(bytes(MAX_MESSAGE))
        await right.until(lambda: right.bulk)
        assert right.lost == []


# --- How a link ends -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closer", ["dialled", "accepted"])
async def test_closing_sends_what_is_queued_and_tells_the_other_side_once(closer: str):
    async with pair() as (left, right):
        here, there = (left, right) if closer == "dialled" else (right, left)
        for _ in range(100):
            here.link.send(bytes(10_000))
        for _ in range(4):
            await here.link.send_bulk(bytes(PIECE))
        await here.link.close()
        await there.until(lambda: there.lost)
        assert len(there.control) == 1_000_000
        assert len(there.bulk) == 4
        await here.link.close()
        await there.link.close()
        assert there.lost == ["closed"]
        assert here.lost == []
        here.link.send(b"dropped")
        with pytest.raises(ClosedError):
            await here.link.send_bulk(b"refused")


async def test_both_sides_may_close_at_once():
    async with pair() as (left, right):
        await asyncio.gather(left.link.close(), right.link.close())
        assert left.lost == right.lost == []


async def test_a_stopped_server_closes_its_links_and_accepts_no_more():
    async with Server() as server:
        left = Owner(await server.dialled())
        Owner(await server.accepted.get())
        await server.peer_server.stop()
        await left.until(lambda: left.lost)
        assert left.lost == ["closed"]
        with pytest.raises(NodeLost, match=server.address):
            await server.dialled()
        await left.link.close()


async def test_who_waits_to_send_bulk_hears_of_the_end():
    async with Server() as server:
        link = await server.dialled()
        accepted = await server.accepted.get()  # not listening, so that the stream fills up
        waiting = [asyncio.create_task(_pour(link, 400)) for _ in range(20)]
        await asyncio.wait(waiting, timeout=0.3)
        assert not any(task.done() for task in waiting)
        await asyncio.gather(accepted.close(), link.close())
        done, _ = await asyncio.wait(waiting, timeout=5)
        assert len(done) == len(waiting)
        for task in waiting:
            with pytest.raises(ClosedError, match="node 1"):
                await task


@pytest.mark.parametrize("failing", ["dialled", "accepted"])
async def test_a_callback_that_fails_ends_the_link_on_both_sides_and_is_reported(failing: str):
    reported: list[str] = []  # not the exceptions: their frames would keep the link
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(repr(context["exception"])))
    async with pair() as (left, right):
        here, there = (left, right) if failing == "dialled" else (right, left)

        def fail(_: bytes) -> None:
            raise KeyError("no such call")

        here.link.on_control = fail
        there.link.send(b"call")
        await here.until(lambda: here.lost)
        await there.until(lambda: there.lost)
        assert here.lost == ["on_control failed: KeyError('no such call')"]
        if failing == "accepted":
            assert there.lost == here.lost
        else:  # whoever dialled cannot tell why it hangs up
            assert [reason.startswith("the connection broke") for reason in there.lost] == [True]
    assert reported == ["KeyError('no such call')"]


PEER = """
import asyncio, json, sys
from rlinf_async.wire.credentials import NodeCredentials
from rlinf_async.wire.dial import dial
from rlinf_async.wire.peer_server import PeerServer

def listen(link):
    link.on_control = link.send
    link.on_bulk = lambda piece: None
    link.on_lost = lambda reason: print(json.dumps(reason), flush=True)

async def main(role, address, run, credentials, keepalive):
    identity = NodeCredentials(**credentials)
    if role == "accepts":
        server = PeerServer(1, run, identity, "127.0.0.1", listen, keepalive=keepalive)
        print(json.dumps(await server.start()), flush=True)
    else:
        listen(await dial(address, node=0, peer=1, run=run, credentials=identity, timeout=10, keepalive=keepalive))
    await asyncio.Event().wait()

asyncio.run(main(**json.loads(sys.stdin.readline())))
"""


@asynccontextmanager
async def remote(role: str, keepalive: float) -> AsyncIterator[tuple[Owner, asyncio.subprocess.Process]]:
    """A link to a process of its own, which accepts the link or dials it and echoes what it is sent."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PEER, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    server = Server(keepalive=keepalive)
    birth = {"role": role, "address": "", "run": RUN, "keepalive": keepalive}
    try:
        async with asyncio.timeout(30):
            if role == "accepts":
                birth["credentials"] = asdict(AUTHORITY.issue(1))
                process.stdin.write(json.dumps(birth).encode() + b"\n")
                server.address = json.loads(await process.stdout.readline())
                link = await server.dialled(keepalive=keepalive)
            else:
                birth["address"] = await server.peer_server.start()
                birth["credentials"] = asdict(AUTHORITY.issue(0))
                process.stdin.write(json.dumps(birth).encode() + b"\n")
                link = await server.accepted.get()
        owner = Owner(link)
        link.send(b"there?")
        await owner.until(lambda: owner.control == b"there?")
        yield owner, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await owner.link.close()
        await server.peer_server.stop()


@pytest.mark.parametrize("role", ["accepts", "dials"])
async def test_the_death_of_the_peer_is_known_within_a_second(role: str):
    async with remote(role, module.KEEPALIVE) as (owner, process):
        start = time.monotonic()
        process.kill()
        await owner.until(lambda: owner.lost)
        assert time.monotonic() - start < 1
        assert len(owner.lost) == 1
        assert owner.lost[0].startswith("the connection broke")
        with pytest.raises(NodeLost, match="the connection broke"):
            await owner.link.send_bulk(b"late")


@pytest.mark.parametrize("role", ["accepts", "dials"])
async def test_a_frozen_peer_is_lost_after_two_keepalives(role: str):
    async with remote(role, 0.5) as (owner, process):
        start = time.monotonic()
        process.send_signal(signal.SIGSTOP)
        await owner.until(lambda: owner.lost)
        assert 0.4 < time.monotonic() - start < 3
        assert len(owner.lost) == 1
        assert "no sign of life" in owner.lost[0]


async def test_closing_does_not_wait_for_a_frozen_peer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(link_module, "CLOSE_SECONDS", 0.3)
    async with remote("accepts", module.KEEPALIVE) as (owner, process):
        process.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        await owner.link.close()
        assert 0.2 < time.monotonic() - start < 2
        assert owner.lost == []


@once
def test_an_idle_link_outlives_many_keepalives():
    async def idle() -> None:
        async with Server(keepalive=0.5) as server:
            left = Owner(await server.dialled(keepalive=0.5))
            right = Owner(await server.accepted.get())
            with pytest.raises(TimeoutError):  # a server that was not told otherwise gives up at the third ping
                await left.until(lambda: left.lost or right.lost, timeout=4.5)
            assert left.lost == right.lost == []
            await left.link.close()

    asyncio.run(idle())


@once
def test_grpc_knows_every_option_that_it_is_given():
    """An option that gRPC does not know is ignored without a word."""
    library = Path(grpc._cython.cygrpc.__file__).read_bytes()
    for name, _ in module._server_options(1) + module._channel_options(1, "name"):
        assert name.encode() in library, name


async def test_fifty_links_leave_no_thread_no_descriptor_and_no_line_in_a_log(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    caplog.set_level(logging.INFO)
    async with pair():
        pass  # gRPC's own threads exist from now on
    process = psutil.Process()
    threads, descriptors = threading.active_count(), process.num_fds()
    for number in range(50):
        async with pair() as (left, right):
            left.link.send(b"ping")
            right.link.send(b"pong")
            if number % 2:
                await left.until(lambda: left.control)
            if number % 3:
                await right.link.close()
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")
    assert threading.active_count() == threads
    assert process.num_fds() < descriptors + 50  # gRPC closes its sockets a little later


# --- Who is let in ---------------------------------------------------------------------------------------------


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
    (_hello(protocol=99, version="9.9"), "FAILED_PRECONDITION", ["protocol 99", "9.9", "protocol 1"]),
    (_hello(python="3.9"), "FAILED_PRECONDITION", ["node 0 runs Python 3.9", f"node 1 runs Python {PYTHON}"]),
    (_hello(python="\x1b[2J\n"), "FAILED_PRECONDITION", [r"\x1b[2J\n"]),
    (_hello(padding=[["x" * 255] * 16] * 16), "UNAUTHENTICATED", NO_HELLO),  # no part is too large, the whole is
    (bytes(MAX_MESSAGE + 1), "RESOURCE_EXHAUSTED", []),
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


@pytest.mark.parametrize("words", [[], [_hello()]], ids=["no Hello", "no bulk stream"])
async def test_a_silent_peer_is_shown_the_door(
    words: list[bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(peer_server_module, "_HELLO_SECONDS", 0.1)
    async with Server() as server:
        channel = await server.raw_channel()
        call = channel.stream_stream("/rlinf.Node/Control")()
        for word in words:
            await call.write(word)
            assert await call.read() is not grpc.aio.EOF
        async with asyncio.timeout(5):
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "within 0.1 s" in await call.details()
        await channel.close()
        assert server.accepted.empty()
        await (await server.dialled()).close()


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        ({"python": "3.9"}, VersionMismatch, f"node 1 runs Python 3.9.*node 0 runs Python {PYTHON}"),
        ({"protocol": 2}, VersionMismatch, "node 1 speaks protocol 2.*node 0 speaks protocol 1"),
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


# --- Where it listens, and whom it reaches ---------------------------------------------------------------------


async def test_it_listens_on_the_one_address_that_it_was_given():
    async with Server() as server:
        mine = [entry for entry in psutil.Process().net_connections("inet") if entry.status == psutil.CONN_LISTEN]
        port = int(server.address.rpartition(":")[2])
        assert [entry.laddr.ip.removeprefix("::ffff:") for entry in mine if entry.laddr.port == port] == ["127.0.0.1"]


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "::ffff:0.0.0.0", "localhost", ""])
@once
def test_it_refuses_to_listen_on_every_interface_or_on_a_name(bind: str):
    with pytest.raises(ConfigError):
        PeerServer(1, RUN, AUTHORITY.issue(1), bind, lambda link: None)


async def test_an_address_of_another_machine_cannot_be_listened_on():
    server = PeerServer(1, RUN, AUTHORITY.issue(1), "192.0.2.1", lambda link: None)
    with pytest.raises(LaunchError, match=r"192\.0\.2\.1"):
        await server.start()
    await server.stop()


async def test_ipv6_works():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 loopback")
    async with Server(bind="::1") as server:
        assert server.address.startswith("[::1]:")
        left = Owner(await server.dialled())
        right = Owner(await server.accepted.get())
        left.link.send(b"six")
        await right.until(lambda: right.control == b"six")
        await left.link.close()


async def test_nobody_can_take_half_of_the_calls_by_binding_the_same_port():
    async with Server() as server:
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            with pytest.raises(OSError) as refused:  # noqa: PT011
                thief.bind(("127.0.0.1", int(server.address.rpartition(":")[2])))
            assert refused.value.errno == errno.EADDRINUSE


async def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with pair() as (left, right):
        left.link.send(b"direct")
        await right.until(lambda: right.control == b"direct")


async def test_where_nobody_listens_the_address_is_named_at_once():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(NodeLost, match=f"{address}.*[Rr]efused") as lost:
            await dial(address, node=0, peer=1, run=RUN, credentials=AUTHORITY.issue(0), timeout=20)
        assert time.monotonic() - start < 5
        assert (lost.value.node_rank, lost.value.node) == (1, address)


async def test_where_nobody_answers_dialling_ends_in_time():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(NodeLost, match=f"{address}.*no answer within 0.3 s"):
            await dial(address, node=0, peer=1, run=RUN, credentials=AUTHORITY.issue(0), timeout=0.3)


async def test_what_is_no_tls_at_all_is_no_node_of_the_run():
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(AuthError, match=address):
            await dial(address, node=0, peer=1, run=RUN, credentials=AUTHORITY.issue(0), timeout=5)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:", "node-2:80", "[::1]"])
async def test_what_is_no_address_is_not_dialled(address: str):
    with pytest.raises(ConfigError):
        await dial(address, node=0, peer=1, run=RUN, credentials=AUTHORITY.issue(0), timeout=5)


async def test_a_cancelled_dial_leaves_nothing_behind():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        dialling = asyncio.create_task(
            dial(address, node=0, peer=1, run=RUN, credentials=AUTHORITY.issue(0), timeout=20)
        )
        await asyncio.wait([dialling], timeout=0.1)
        dialling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialling


@once
def test_importing_grpc_leaves_the_environment_of_children_alone():
    assert "GRPC_VERBOSITY" not in os.environ
