"""Orderly ends, without a daemon."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from rlinf_async._worker import ending as ending_module
from rlinf_async._worker.concurrent_calls import ConcurrentCalls
from rlinf_async._worker.ending import Ending, EndWatch
from rlinf_async._worker.methods import Methods


class Closing:
    def __init__(self) -> None:
        self.done: list[str] = []

    async def step(self) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            for task in asyncio.all_tasks():  # as programs do that own their loop
                if task is not asyncio.current_task():
                    task.cancel()
            await asyncio.sleep(0.05)
            self.done.append("cleaned up")

    async def on_close(self) -> None:
        self.done.append("closed")


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def begun(loop: asyncio.AbstractEventLoop, worker: Closing) -> asyncio.Task[None]:
    task = loop.create_task(worker.step())
    loop.call_soon(loop.stop)
    loop.run_forever()
    return task


def test_a_cleaning_up_that_cancels_all_tasks_does_not_keep_the_hook_from_being_called(
    loop: asyncio.AbstractEventLoop,
) -> None:
    methods, worker = Methods(lambda: None), Closing()
    ending = Ending(loop, methods, ConcurrentCalls(lambda call, loop: None))
    methods.worker = worker
    begun(loop, worker)
    ending.announce(5.0)
    ending.run()
    assert worker.done == ["cleaned up", "closed"]


def test_nor_is_it_left_in_the_midst_beside_the_others(loop: asyncio.AbstractEventLoop) -> None:
    worker = Closing()
    begun(loop, worker)
    loop.run_until_complete(ConcurrentCalls(lambda call, loop: None)._cancel_all())
    assert worker.done == ["cleaned up"]


def test_a_worker_without_a_stderr_is_cut_off_all_the_same(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(ending_module, "_STDERR", 1 << 20)
    monkeypatch.setattr(os, "_exit", codes.append)
    ending = Ending(loop, Methods(lambda: None), ConcurrentCalls(lambda call, loop: None))
    EndWatch(loop, ending, "group:0")._cut(1.0, 5.0)
    assert codes == [1]
