"""``TokenProgress``: open requests that get no token for too long, and those that wait on purpose."""

from __future__ import annotations

import asyncio

import pytest

from rlinf_async._core import clock
from rlinf_async.engines import token_progress
from rlinf_async.engines.token_progress import TokenProgress

LIMIT_S = 10.0


class Time:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(clock, "monotonic", time.monotonic)
    monkeypatch.setattr(token_progress, "_TO_READ_S", 0)
    return time


async def is_stalled(progress: TokenProgress, time: Time, after_s: float) -> bool:
    """Return whether requests count as stalled once so many seconds have passed."""
    waiting = asyncio.ensure_future(progress.stalled(LIMIT_S))
    await asyncio.sleep(0)
    time.now += after_s
    progress._changed.set()  # as its own timer would
    for _ in range(5):
        await asyncio.sleep(0)
    done = waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return done


async def test_an_open_request_without_a_token_is_stalled(time: Time) -> None:
    progress = TokenProgress()
    with progress.of_one():
        assert not await is_stalled(progress, time, LIMIT_S - 1)
        assert await is_stalled(progress, time, LIMIT_S + 1)


async def test_tokens_that_came_while_this_process_was_stopped_are_read_first(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_progress, "_TO_READ_S", 0.05)
    progress = TokenProgress()
    with progress.of_one() as note:
        waiting = asyncio.ensure_future(progress.stalled(LIMIT_S))
        await asyncio.sleep(0)
        time.now += LIMIT_S + 5
        progress._changed.set()
        await asyncio.sleep(0.01)
        note()
        await asyncio.sleep(0.1)
        assert not waiting.done()
        waiting.cancel()


async def test_a_token_of_any_request_counts_for_all(time: Time) -> None:
    progress = TokenProgress()
    with progress.of_one(), progress.of_one() as note:
        waiting = asyncio.ensure_future(progress.stalled(LIMIT_S))
        await asyncio.sleep(0)
        time.now += LIMIT_S - 1
        note()
        time.now += LIMIT_S - 1
        progress._changed.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_an_idle_or_paused_engine_is_not_stalled(time: Time) -> None:
    progress = TokenProgress()
    assert not await is_stalled(progress, time, LIMIT_S + 1)
    with progress.of_one():
        progress.pause()
        assert not await is_stalled(progress, time, LIMIT_S + 1)
        progress.resume()
        assert not await is_stalled(progress, time, LIMIT_S - 1)


async def test_requests_are_counted_while_they_are_open() -> None:
    progress = TokenProgress()
    with progress.of_one():
        with progress.of_one():
            assert progress.open == 2
        assert progress.open == 1
    assert progress.open == 0
