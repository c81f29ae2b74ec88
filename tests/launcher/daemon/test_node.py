"""A daemon's tasks: logged failures, and links that arrive while the daemon ends."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from rlinf_async._core import frames
from rlinf_async._core.pool import Pool
from rlinf_async._wire.unix import Connection
from rlinf_launcher.daemon.node import Node, _leaves
from rlinf_launcher.daemon.router import Router


def test_each_error_of_nested_groups_is_told() -> None:
    errors = [ValueError("a"), OSError("b"), KeyError("c")]
    nested = ExceptionGroup("all", [errors[0], ExceptionGroup("some", errors[1:])])
    assert _leaves(nested) == errors


async def test_a_link_that_comes_while_the_node_ends_is_closed() -> None:
    closed: list[int] = []

    class Link:
        peer = 2
        on_control = on_bulk = on_lost = None

        async def close(self) -> None:
            closed.append(self.peer)

    node = Node.__new__(Node)
    node._names, node._bodies, node._stop = {}, Pool(0), asyncio.Event()
    node._router = Router(asyncio.get_running_loop(), 0, lambda *_: None)
    node._stop.set()
    async with asyncio.timeout(5), asyncio.TaskGroup() as node._tasks:
        node._add_node_link(Link())
    assert closed == [2]
    assert node._router.node_links == {}


@pytest.mark.parametrize(
    ("error", "has_oldest", "pauses"),
    [(errno.EMFILE, True, False), (errno.EMFILE, False, True), (errno.ECONNABORTED, False, False)],
)
def test_accepting_pauses_only_while_no_descriptor_can_be_freed(error: int, has_oldest: bool, pauses: bool) -> None:
    node: Any = Node.__new__(Node)
    done: list[str] = []
    node._admission = SimpleNamespace(end_oldest=lambda: has_oldest)
    node._loop = SimpleNamespace(
        remove_reader=lambda fd: done.append("removed"), call_later=lambda *args: done.append("later")
    )
    listener: Any = SimpleNamespace(accept=Mock(side_effect=OSError(error, "refused")), fileno=lambda: 3)
    node._accept(listener)
    assert done == (["removed", "later"] if pauses else [])


async def test_the_last_frames_of_a_driver_that_died_are_handled() -> None:
    events: list[Any] = []
    node: Any = Node.__new__(Node)
    node._loop = loop = asyncio.get_running_loop()
    node._router = Router(loop, 0, lambda *_: None)
    node._admission = SimpleNamespace(remove=lambda _: None)
    node._service = SimpleNamespace(
        inspection=SimpleNamespace(note_left=lambda _: None), forget_endpoint=lambda _: events.append("forgotten")
    )
    here, there = socket.socketpair()
    endpoint = node._router.new_endpoint("driver")
    endpoint.is_known, endpoint.pidfd = True, os.dup(here.fileno())
    endpoint.connection = Connection(
        here, loop, on_frame=lambda frame, _: events.append(frame[4]), on_closed=lambda _: None
    )
    driver = Connection(there, loop, on_frame=lambda *_: None, on_closed=lambda _: None)
    driver.open()
    driver.send((frames.CANCEL, 0, 1, [], 7))
    await asyncio.sleep(0)  # the frame is written, and the other side does not watch its socket
    node._driver_gone(endpoint)
    driver.close()
    assert events == [7, "forgotten"]
