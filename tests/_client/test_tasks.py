"""Coroutines of the framework that run on a client's loop, at the end of that loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rlinf_async import ClosedError
from rlinf_async._client.client import NodeClient
from rlinf_async._client.loop_thread import LoopThread


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
