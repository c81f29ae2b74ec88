"""Ports of a range: which are taken, and the error when none is left."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from rlinf_async._wire.listen_ports import listening_sockets, promise
from rlinf_async.errors import LaunchError

HERE = "127.0.0.1"


@pytest.fixture
def ports() -> Iterator[range]:
    """Four ports that were free a moment ago; on the second, something listens."""
    for first in range(21000, 30000, 4):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in (first, first + 2, first + 3):
                socket.create_server((HERE, port)).close()
            stack.enter_context(socket.create_server((HERE, first + 1)))
            yield range(first, first + 4)
            return


def listen(ports: range | None) -> Iterator[socket.socket]:
    return listening_sockets(HERE, ports, "the store of group 'g'")


@contextlib.contextmanager
def promised(*ports: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for port in ports:
            mark = promise(port)
            assert mark is not None
            stack.enter_context(mark)
        yield


def test_every_free_port_of_the_range_is_tried_once_and_no_other(ports: range) -> None:
    sockets: list[socket.socket] = []
    with pytest.raises(LaunchError):
        sockets.extend(listen(ports))
    taken = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    assert sorted(taken) == [ports[0], ports[2], ports[3]]


def test_a_promised_port_is_left_alone(ports: range) -> None:
    with promised(ports[0], ports[3]), next(listen(ports)) as sock:
        assert sock.getsockname()[1] == ports[2]


def test_a_port_is_promised_once_until_its_mark_is_closed() -> None:
    with promised(20999):
        assert promise(20999) is None
    with promised(20999):
        pass


def test_the_error_names_the_range_and_what_holds_it(ports: range) -> None:
    with promised(ports[0], ports[2], ports[3]), pytest.raises(LaunchError) as error:
        next(listen(ports))
    words = str(error.value)
    assert words.startswith(
        f"no port of {ports[0]}-{ports[-1]} (--port-range) is free on {HERE} for the store of group"
    )
    assert f" {ports[1]} by pid {os.getpid()} (" in words
    assert f"\n  held: {ports[0]} promised" in words
    assert f", {ports[2]} promised by acquire_free_port(), " in words
    assert "\n  fix: a wider --port-range" in words


def test_connections_that_linger_hold_no_port(ports: range) -> None:
    with socket.create_server((HERE, ports[0])) as server, socket.create_connection((HERE, ports[0])) as near:
        far, _ = server.accept()
        far.close()  # first: this side lingers
        assert near.recv(1) == b""
    with next(listen(ports[:1])) as sock:
        assert sock.getsockname()[1] == ports[0]


def test_without_a_range_the_kernel_chooses() -> None:
    with next(listen(None)) as sock:
        assert sock.getsockname()[1] > 0
        assert sock.getsockname()[0] == HERE
