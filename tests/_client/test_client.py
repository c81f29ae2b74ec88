"""Frames of the daemon, as a client without a socket hears them."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from rlinf_async._client.client import NodeClient, _all_closed
from rlinf_async._core import frames, operations
from rlinf_async._core.frames import Status
from rlinf_async._waits.unobserved_errors import lines
from rlinf_async._wire.unix import Connection
from rlinf_async.errors import ClosedError, NodeLost

WORKER, CALL = frames.endpoint(0, 5), 7


@pytest.mark.parametrize("told", [Status.DIED, Status.UNKNOWN, Status.LOST, Status.OK])
async def test_what_a_worker_has_still_said_on_its_own_socket_comes_before_word_of_its_end(
    monkeypatch: pytest.MonkeyPatch, told: Status
) -> None:
    client = NodeClient(asyncio.get_running_loop())
    heard: list[int] = []
    handler: Any = SimpleNamespace(_targets=[WORKER], _answer=lambda slot, status, body: heard.append(status))
    client._calls[CALL] = handler

    def reply(status: int) -> list[Any]:
        return [frames.REPLY, 0, WORKER, client.endpoint, CALL, 0, int(status), b""]

    def drain(worker: int) -> None:
        assert worker == WORKER
        client._on_frame(reply(Status.ITEM), [])

    monkeypatch.setattr(client.direct_sockets, "drain", drain)
    client._on_frame(reply(told), [])
    client._calls.clear()
    client.close()
    assert heard == ([Status.OK] if told == Status.OK else [Status.ITEM, told])


async def test_a_daemons_earlier_frames_precede_later_direct_ones() -> None:
    """A frame of the daemon stands before those sent directly after it, and behind those sent directly before."""
    client = NodeClient(asyncio.get_running_loop())
    (daemon, near), (worker, near_worker) = socket.socketpair(), socket.socketpair()
    heard: list[int] = []

    def from_daemon(frame: list[Any], fds: list[int]) -> None:
        direct.drain()
        heard.append(frame[4])

    def from_worker(frame: list[Any], fds: list[int]) -> None:
        heard.append(frame[4])

    def packed(*numbers: int) -> bytes:
        return b"".join(frames.pack((frames.CANCEL, 0, 1, [], number)) for number in numbers)

    client._connection = Connection(near, client.loop, on_frame=from_daemon, on_closed=print)
    direct = client.connect_directly(near_worker, on_frame=from_worker, on_closed=print)
    worker.sendall(packed(1, 2))
    daemon.sendall(packed(3, 4))
    assert direct.reader.read() is not False
    assert heard == [1, 2, 3, 4]
    daemon.sendall(packed(5, 7))
    worker.sendall(packed(6))
    client._connection.drain()
    assert heard[4:] == [6, 5, 7]
    direct.close()
    client.close()
    daemon.close()
    worker.close()


async def test_a_closed_client_ends_waits_for_its_welcome() -> None:
    client = NodeClient(asyncio.get_running_loop())
    client.close()
    with pytest.raises(ClosedError, match="the cluster is closed"):
        await client.ready.async_wait(1)


async def test_a_call_that_could_not_be_sent_is_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    client = NodeClient(asyncio.get_running_loop())
    handler: Any = SimpleNamespace(_targets=[WORKER], _begin=lambda call: [WORKER])

    def refuse(*_: Any) -> None:
        raise OSError("no more descriptors")

    monkeypatch.setattr(client, "send", refuse)
    with pytest.raises(OSError, match="no more descriptors"):
        client.call(handler, frames.route_to, "step", b"", ())
    with pytest.raises(OSError, match="no more descriptors"):
        client.request(operations.Reserve("group", "ring"))
    left, requests = dict(client._calls), len(client._requests)
    client._calls.clear()
    client.close()
    assert (left, requests) == ({}, 0)


async def test_a_call_to_a_lost_node_fails_on_a_closed_loop_too() -> None:
    loop = asyncio.new_event_loop()
    client = NodeClient(loop)
    client.lost_nodes[0] = NodeLost("it burnt")
    heard: list[int] = []
    handler: Any = SimpleNamespace(
        _targets=[WORKER], _mark_departed=lambda: None, _answer=lambda slot, status, body: heard.append(status)
    )
    client._calls[CALL] = handler
    loop.close()
    client._departed(CALL, handler)
    client._calls.clear()
    client.close()
    assert heard == [Status.LOST]


@pytest.mark.parametrize("search", [_all_closed, lines], ids=["of clients", "of errors"])
def test_a_client_that_another_thread_makes_at_any_step_disturbs_no_search(search: Callable[[], object]) -> None:
    loop = asyncio.new_event_loop()
    made: list[NodeClient] = []

    def make(frame: FrameType, event: str, arg: object) -> Any:
        if len(made) < 100:
            made.append(NodeClient(loop))
            made[-1]._closed = ClosedError("closed")
        return make

    before = sys.gettrace()
    sys.settrace(make)
    try:
        search()
    finally:
        sys.settrace(before)
        loop.close()
    assert made
