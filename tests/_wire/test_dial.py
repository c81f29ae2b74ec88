"""Node addresses: listening, dialling, and errors of unreachable nodes."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from rlinf_async._wire import grpc as grpc_module
from rlinf_async._wire.daemon_link import Broken
from rlinf_async._wire.dial import dial
from rlinf_async._wire.peer_server import PeerServer
from rlinf_async.errors import AuthError, ConfigError, LaunchError, NodeLost, VersionMismatch
from tests._support.daemon_link_pairs import (
    AUTHORITY,
    RUN,
    Owner,
    Server,
    both_loops,
    either_loop,
    once,
    pair,
)

pytestmark = both_loops
event_loop_policy = either_loop


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


async def test_of_a_range_of_ports_it_listens_on_one_that_is_free():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with Server(ports=range(port, port + 10)) as server:
            assert int(server.address.rpartition(":")[2]) in range(port + 1, port + 10)
        full = PeerServer(1, RUN, AUTHORITY.issue(1), "127.0.0.1", lambda link: None, ports=[port])
        with pytest.raises(LaunchError, match=rf"no port of {port}-{port} \(--port-range\) is free on 127\.0\.0\.1"):
            await full.start()
        await full.stop()


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
    assert not {"GRPC_VERBOSITY", "GRPC_EXPERIMENTS"} & os.environ.keys()


@pytest.mark.parametrize("knows", [True, False])
@once
def test_a_version_of_grpc_is_asked_only_for_what_it_knows(
    knows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "_cython").mkdir()
    names = [b"event_engine_client", b"event_engine_listener"][: 1 + knows]
    (tmp_path / "_cython" / "cygrpc.cpython-311.so").write_bytes(b"ELF\0" + b"\0".join(names) + b"\0")
    package = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: package)
    assert grpc_module._experiments() == ("-event_engine_client,-event_engine_listener" if knows else "")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("UNAUTHENTICATED", AuthError("what it said")),
        ("FAILED_PRECONDITION", VersionMismatch("what it said")),
        ("UNAVAILABLE", Broken("cannot be reached (what it said)")),
    ],
)
@once
async def test_what_a_peer_refuses_with_is_the_error_here(code: str, error: Exception):
    async def said(what: object) -> object:
        return what

    call = SimpleNamespace(code=lambda: said(grpc_module.grpc.StatusCode[code]), details=lambda: said("what it said"))
    refusal = await grpc_module.refusal(call)
    assert (type(refusal), str(refusal)) == (type(error), str(error))
