"""TCP connections of the process: search by address, ending for good."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

import pytest

from rlinf_async._transports.tcp_connections import TcpConnection, is_named_in
from rlinf_async.errors import TransferFailed


@contextlib.contextmanager
def connected(count: int = 1) -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Pairs of connected sockets, each with the one that was accepted."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        pairs = []
        for _ in range(count):
            near = stack.enter_context(socket.create_connection(listener.getsockname()))
            pairs.append((near, stack.enter_context(listener.accept()[0])))
        yield pairs


def test_the_one_connection_that_is_wanted_is_found_and_ended_on_both_sides() -> None:
    with connected(3) as pairs:
        near, far = pairs[1]
        connection = TcpConnection.find(lambda found, _: found == near.getsockname())
        assert connection is not None
        assert (connection.near, connection.far) == (near.getsockname(), far.getsockname())
        connection.end()
        assert far.recv(1) == near.recv(1) == b""
        pairs[0][0].send(b"x")
        assert pairs[0][1].recv(1) == b"x"


def test_what_is_held_is_not_found_again_before_it_is_ended() -> None:
    with connected() as [(near, _)]:
        own = near.getsockname()
        connection = TcpConnection.find(lambda found, _: found == own)
        assert connection is not None
        assert TcpConnection.find(lambda found, _: found == own) is None
        connection.end()
        connection.end()
        assert TcpConnection._held == set()


def test_several_that_could_be_meant_are_an_error() -> None:
    with connected(2) as pairs:
        to = pairs[0][0].getpeername()
        with pytest.raises(TransferFailed, match="2 new connections"):
            TcpConnection.find(lambda _, far: far == to)
        assert TcpConnection._held == set()


def test_listeners_ended_connections_and_other_sockets_are_left_alone() -> None:
    seen = []
    with connected(2) as pairs, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.connect(pairs[0][0].getpeername())
        pairs[0][0].shutdown(socket.SHUT_RDWR)
        TcpConnection.find(lambda near, far: bool(seen.append((near, far))))  # type: ignore[func-returns-value]
        ours = pairs[1][0].getsockname(), pairs[1][0].getpeername()
        assert ours in seen
        assert (pairs[0][0].getsockname(), pairs[0][0].getpeername()) not in seen
        assert (datagrams.getsockname(), datagrams.getpeername()) not in seen


@pytest.mark.parametrize(
    ("family", "host", "rest"),
    [(socket.AF_INET, "10.1.2.3", b""), (socket.AF_INET6, "fd00::17", b""), (socket.AF_INET6, "fe80::1", b"%eth0")],
)
def test_an_address_is_recognised_in_what_gloo_tells(family: int, host: str, rest: bytes) -> None:
    flow = struct.pack("!I", 0) if family == socket.AF_INET6 else b""
    blob = b"\1\2\3" + struct.pack("!H", 4711) + flow + socket.inet_pton(family, host) + b"\4\5"
    assert is_named_in(blob, (host + rest.decode(), 4711))
    assert not is_named_in(blob, (host, 4712))
