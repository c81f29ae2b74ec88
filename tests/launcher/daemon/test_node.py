"""A daemon's tasks: their failures, as they are told, and what comes while the daemon ends."""

from __future__ import annotations

import asyncio

from rlinf_async._core.pool import Pool
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
