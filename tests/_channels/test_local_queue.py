"""A channel of one process whose threads use it at once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rlinf_async._channels.local_queue import LocalQueue
from rlinf_async._channels.request import Get, Put
from rlinf_async._core import frames
from rlinf_async._waits.thread_gate import LockGate


def test_a_put_whose_time_is_over_as_another_thread_lets_it_in_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = LocalQueue("token", "here", 1, 0)
    first, late = (
        Put("here", None, b"k", 0, number, 1, frames.WAIT, timeout) for number, timeout in ((1, None), (2, 9.0))
    )
    queue.start(first)
    queue.start(late)
    follow = queue._follow

    def meanwhile(steps: Any) -> None:
        late._expire()
        follow(steps)

    monkeypatch.setattr(queue, "_follow", meanwhile)
    get: Get[Any] = Get("get() from", "here", None, b"k", None, None)
    queue.start(get)
    assert get.wait() == 1
    late.wait()
    assert queue.counts().present == 1


async def test_a_cancelled_task_returns_no_item_that_a_thread_awaits(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = LocalQueue("token", "here", 0, 0)
    get: Get[Any] = Get("get() from", "here", None, b"k", None, None)
    queue.start(get)
    waits, goes_on, wait = threading.Event(), threading.Event(), LockGate.wait

    def slow(gate: LockGate, seconds: float) -> bool:
        waits.set()
        is_open = wait(gate, seconds)
        goes_on.wait()
        return is_open

    monkeypatch.setattr(LockGate, "wait", slow)
    thread = asyncio.create_task(asyncio.to_thread(get.wait))
    await asyncio.to_thread(waits.wait)
    task = asyncio.create_task(get)
    await asyncio.sleep(0)
    queue.start(Put("here", None, b"k", 0, "item", 1, frames.WAIT, None))
    task.cancel()
    await asyncio.wait([task])
    goes_on.set()
    assert await thread == "item"


def test_who_asks_while_another_thread_rebuilds_the_item_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = LocalQueue("token", "here", 0, 0)
    get: Get[Any] = Get("get() from", "here", None, b"k", None, None)
    queue.start(get)
    queue.start(Put("here", None, b"k", 0, "item", 1, frames.WAIT, None))
    rebuilding, asked = threading.Event(), threading.Event()

    def decode(body: Any, fds: Any) -> Any:
        rebuilding.set()
        asked.wait(0.3)
        return body[0]

    monkeypatch.setattr(queue, "decode", decode)
    first = threading.Thread(target=get.wait)
    first.start()
    rebuilding.wait(10)
    assert get.wait() == "item"
    asked.set()
    first.join(10)
