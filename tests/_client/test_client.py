"""Frames of the daemon, as a client without a socket hears them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._client.client import NodeClient
from rlinf_async._core import frames
from rlinf_async._core.frames import Status
from rlinf_async.errors import NodeLost

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


async def test_a_call_that_could_not_be_sent_is_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    client = NodeClient(asyncio.get_running_loop())
    handler: Any = SimpleNamespace(_targets=[WORKER], _begin=lambda call: [WORKER])

    def refuse(*_: Any) -> None:
        raise OSError("no more descriptors")

    monkeypatch.setattr(client, "send", refuse)
    with pytest.raises(OSError, match="no more descriptors"):
        client.call(handler, frames.route_to, "step", b"", ())
    left = dict(client._calls)
    client._calls.clear()
    client.close()
    assert left == {}


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
