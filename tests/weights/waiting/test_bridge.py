"""Turns of coroutines, some of which block a thread."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from rlinf_async.weights.waiting.execution import SyncAdapter, Turns, outlast
from rlinf_async.work import Work


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_turn_does_not_block_the_loop_that_those_before_it_need(
    loop: asyncio.AbstractEventLoop, is_cancelled: bool
) -> None:
    bridge, packed = SyncAdapter(), loop.create_future()
    turns = Turns(bridge)

    async def pack() -> None:
        await outlast(packed)

    async def send() -> int:
        return 2

    async def begin() -> None:
        work = turns.run(pack, "a send")
        await asyncio.sleep(0)
        if is_cancelled:
            work.cancel()

    def send_by_blocking(found: list[object]) -> None:
        try:
            found.append(turns.run(send, "a send"))
        except RuntimeError as error:
            found.append(str(error))

    loop.run_until_complete(begin())  # the loop stands still now, as in front of a worker's ``def`` method
    here: list[object] = []
    send_by_blocking(here)
    assert "would block the event loop of this thread" in str(here)
    elsewhere: list[object] = []
    thread = threading.Thread(target=send_by_blocking, args=(elsewhere,))
    thread.start()
    packed.set_result(None)
    while thread.is_alive():
        loop.run_until_complete(asyncio.sleep(0.001))
    send_by_blocking(elsewhere)
    assert elsewhere == [2, 2]
    bridge.release()


def test_a_wait_does_not_block_the_loop_that_its_work_needs(loop: asyncio.AbstractEventLoop) -> None:
    bridge, packed = SyncAdapter(), loop.create_future()

    async def begin() -> Work[None]:
        work: Work[None] = bridge.run(outlast(packed), "a send")
        await asyncio.sleep(0)
        return work

    work = loop.run_until_complete(begin())
    with pytest.raises(RuntimeError, match="would block the event loop of this thread, on which a send goes on"):
        work.wait(5)
    packed.set_result(None)
    loop.run_until_complete(work)
    work.wait()


def test_loops_that_have_ended_are_forgotten() -> None:
    bridge, loops = SyncAdapter(), []

    async def send() -> int:
        return len(loops)

    async def begin() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await bridge.run(send(), "a send")

    for _ in range(3):
        asyncio.run(begin())
    gc.collect()
    assert [loop() is None for loop in loops] == [True, True, False]
