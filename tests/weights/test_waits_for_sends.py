"""Waits for async sends that were waited for elsewhere or closed: errors in words."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import torch

from rlinf_async import WorkerWeightSyncScheme
from rlinf_async.errors import ClosedError
from tests._support.weight_parts import SyncAdapter
from tests.weights.ends import Tied, both


class Slow:
    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()

    async def update_policy_weights_(self, policy_or_weights: Any) -> None:
        self.begun.set()
        assert await asyncio.to_thread(self.goes_on.wait, 20)


def sending_to(slow: Slow) -> WorkerWeightSyncScheme:
    scheme = WorkerWeightSyncScheme(ack_timeout=30)
    scheme.init_on_sender("policy", remote_collectors=[slow], source_model={"w": torch.ones(2)})
    return scheme


def test_the_second_thread_that_waits_for_one_send_is_told_that_nothing_is_pending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Slow()
    scheme = sending_to(slow)
    sender = scheme.get_sender()
    sender.send_async()
    outcomes: list[Any] = []
    asked, block = threading.Semaphore(0), SyncAdapter._block

    def note(bridge: SyncAdapter, coroutine: Any) -> Any:
        if bridge is sender._adapter:
            asked.release()
        return block(bridge, coroutine)

    def wait() -> None:
        try:
            outcomes.append(sender.wait_async().version)
        except Exception as error:
            outcomes.append(error)

    monkeypatch.setattr(SyncAdapter, "_block", note)
    threads = [threading.Thread(target=wait) for _ in range(2)]
    threads[0].start()
    assert slow.begun.wait(20)
    threads[1].start()
    for _ in threads:
        assert asked.acquire(timeout=20)
    slow.goes_on.set()
    for thread in threads:
        thread.join(20)
    monkeypatch.undo()
    version, error = sorted(outcomes, key=str)
    assert version == 1
    assert isinstance(error, RuntimeError)
    assert str(error) == "No async send is pending. Call send_async() first."
    scheme.close()


async def test_a_wait_that_is_closed_before_it_has_begun_says_so() -> None:
    slow = Slow()
    scheme = sending_to(slow)
    await scheme.get_sender().send_async()
    assert await asyncio.to_thread(slow.begun.wait, 20)
    waiting = scheme.get_sender().wait_async()
    closing = scheme.close()
    slow.goes_on.set()
    await closing
    with pytest.raises(ClosedError, match="the sender of 'policy' is closed"):
        await waiting


@pytest.mark.parametrize("ended_by", ["deadline", "cancellation"])
async def test_an_answer_that_comes_with_the_end_of_the_wait_is_told(
    monkeypatch: pytest.MonkeyPatch, ended_by: str
) -> None:
    async with both("multiprocess") as ends:
        await ends.deliver()
        await ends.sender.send_async(Tied(2.0))
        answers = ends.sender._sending._answers

        async def overtaken(handle: Any) -> Any:
            try:
                return await answers(handle)
            except asyncio.CancelledError:
                assert await ends.take(5)
                while not handle.done():
                    await asyncio.sleep(0)
                raise

        monkeypatch.setattr(ends.sender._sending, "_answers", overtaken)
        if ended_by == "cancellation":
            waiting = asyncio.create_task(ends.sender.wait_async())
            await asyncio.sleep(0.05)
            inner = next(iter(ends.sender._adapter._tasks.values()))._running.copy()
            waiting.cancel()
            await asyncio.wait(inner)
        assert (await ends.sender.wait_async(0.05)).version == 2
        with pytest.raises(RuntimeError, match="No async send is pending"):
            await ends.sender.wait_async()
