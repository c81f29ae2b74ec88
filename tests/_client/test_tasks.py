"""Coroutines of the framework that run on a client's loop, at the end of that loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rlinf_async import ClosedError, LoopNotRunning
from rlinf_async._client.client import NodeClient
from rlinf_async._client.loop_thread import LoopThread
from rlinf_async._client.tasks import Task


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_what_another_thread_asks_for_while_the_loop_ends_fails(seconds: float) -> None:
    """It may come behind the word that stops the loop, or be begun and not come to its first step."""
    thread = LoopThread()
    are_daemons = [each.daemon for each in threading.enumerate() if each.name == "rlinf-loop"]
    client = NodeClient(thread.loop)
    may_go_on = threading.Event()
    thread.call(lambda: may_go_on.wait(10))
    early = client.run(asyncio.sleep(60))
    ending = threading.Thread(target=client.end_loop, args=(thread,))
    ending.start()
    late = client.run(asyncio.sleep(seconds))
    may_go_on.set()
    ending.join()
    for work in (early, late):
        with pytest.raises(ClosedError, match="given up"):
            work.wait(5)
    with pytest.raises(ClosedError):
        client.run(asyncio.sleep(0))
    assert are_daemons == [True]  # else a script that ends without closing its cluster would never end


def test_a_wait_for_a_task_of_a_closed_loop_says_so_in_the_loops_own_thread() -> None:
    loop = asyncio.new_event_loop()

    async def begin() -> Task:
        work = client.run(asyncio.sleep(60))
        await asyncio.sleep(0)
        return work

    client = NodeClient(loop)
    work = loop.run_until_complete(begin())
    loop.close()  # as asyncio.run does when Ctrl-C interrupts its cleanup
    work._task._log_destroy_pending = False  # type: ignore[union-attr]
    with pytest.raises(LoopNotRunning):  # so Cluster.close() ends its nodes without the loop
        work.wait(5)
