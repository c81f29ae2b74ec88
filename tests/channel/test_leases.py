"""Leases of a channel's items, and loops that ask for several: what has not ended well is there for others."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from rlinf_async import Channel, Cluster, EndOfChannel, LeaseLost, NodePlacementStrategy, WorkerDied
from rlinf_async._waits.thread_gate import LockGate
from tests._support.channel_workers import User

pytestmark = pytest.mark.shared_cluster


class Holder(User):
    """Holds leases, and ends them or itself."""

    def __init__(self) -> None:
        super().__init__()

    def hold(self, channel: Channel, count: int, **how: Any) -> list[Any]:
        with channel.lease(count, **how) as items:
            return list(items)

    def hold_and_be(self, channel: Channel, count: int, done: int, sent: int) -> None:
        with channel.lease(count) as items:
            if done:
                items.done(done)
            os.kill(os.getpid(), sent)
            time.sleep(60)

    def hold_and_outlive(self, channel: Channel, count: int, seconds: float) -> str:
        try:
            with channel.lease(count, timeout=seconds):
                time.sleep(4 * seconds)
        except LeaseLost as error:
            return str(error)
        return "kept"

    def begin_and_be(self, channel: Channel, count: int, window: int | None, sent: int) -> None:
        items = iter(channel.get, None) if window == 0 else channel.items(window=window)
        for begun, _ in enumerate(items, 1):
            if begun == count:
                os.kill(os.getpid(), sent)
                time.sleep(60)

    async def begin(self, channel: Channel, count: int) -> list[Any]:
        found = []
        async for item in channel:
            found.append(item)
            if len(found) == count:
                break
        return found


@pytest.fixture(scope="module")
def holders(cluster: Cluster) -> Any:
    """One on each node."""
    group = Holder.create_group().launch(cluster, placement=NodePlacementStrategy([0, 1]), name="holders")
    yield group.wait_ready()
    group.close()


def mortal(cluster: Cluster, node: int) -> Any:
    return Holder.create_group().launch(cluster, placement=NodePlacementStrategy([node]), name="mortal").wait_ready()


def fill(channel: Channel, count: int) -> None:
    for number in range(count):
        channel.put(number)


# -- leases -----------------------------------------------------------------------------------------------------------


def test_a_block_that_ends_well_keeps_its_items_and_one_that_fails_gives_them_back(channel: Channel) -> None:
    fill(channel, 6)
    with channel.lease(2) as items:
        assert items == [0, 1]
        assert channel.qsize() == 4
    with pytest.raises(LookupError):
        _fail_after_one(channel)
    assert channel.stats().got == 3
    with channel.lease(2) as items:
        assert (items, items.redelivered) == ([3, 4], True)
    assert channel.get() == 5


async def test_in_coroutines_an_error_or_a_cancel_gives_the_items_back() -> None:
    async with (
        Cluster(num_nodes=1, log_to_driver=False) as cluster,
        Channel.create("leased", cluster=cluster) as channel,
    ):
        for number in range(4):
            await channel.put(number)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_hold(channel), 0.05)
        assert await channel.get_many(3) == [1, 2, 3]
        waiting = asyncio.ensure_future(_first(channel))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        await channel.put("next")
        assert await channel.get(timeout=5) == "next"
        await channel.aclose()
        with pytest.raises(EndOfChannel):
            await _first(channel)


def _fail_after_one(channel: Channel) -> None:
    with channel.lease(3) as items:
        items.done()
        raise LookupError


async def _hold(channel: Channel) -> None:
    async with channel.lease(3) as items:
        await items.done()
        await asyncio.sleep(60)


async def _first(channel: Channel) -> Any:
    async with channel.lease() as items:
        return items[0]


@pytest.mark.parametrize("node", [0, 1], ids=["near", "far"])
def test_a_killed_holder_has_what_it_confirmed_and_the_rest_goes_to_the_next(cluster: Cluster, node: int) -> None:
    group = mortal(cluster, node)
    with Channel.create("killed", cluster=cluster) as channel:
        fill(channel, 5)
        with pytest.raises(WorkerDied):
            group.hold_and_be(channel, 4, 1, signal.SIGKILL).wait()
        assert channel.get_many(4) == [1, 2, 3, 4]
        assert channel.qsize() == 0
    group.close()


def test_what_a_lease_cannot_take_is_said_at_once(channel: Channel) -> None:
    for arguments, error in (
        ((0,), r"lease\(\) of channel '.*': n= takes a whole number from 1"),
        ((1.5,), "n= takes a whole number"),
    ):
        with pytest.raises((ValueError, TypeError), match=error):
            channel.lease(*arguments)
    for timeout in (-1, float("nan"), "1"):
        with pytest.raises((ValueError, TypeError), match="timeout= takes seconds"):
            channel.lease(timeout=timeout)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="could do nothing in 0 s: leave it out"):
        channel.lease(timeout=0)
    with Channel.create("local", local=True) as local:
        with pytest.raises(ValueError, match="is local, and its leases end with their blocks: leave it out"):
            local.lease(timeout=1)
        local.put(1)
        with local.lease() as items:
            for count in (0, 2, True):
                with pytest.raises(ValueError, match="number of items that are done, 1 to 1 here"):
                    items.done(count)
        assert local.stats().got == 1
    lease = channel.lease()
    fill(channel, 1)
    with lease:
        pass
    with pytest.raises(RuntimeError, match=r"call channel\.lease\(\) for each"), lease:
        pass


# -- loops ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 5, 1, 0], ids=["16", "5", "1", "plain gets"])
@pytest.mark.parametrize("node", [0, 1], ids=["near", "far"])
def test_a_killed_loop_has_what_it_began_with_and_no_more(cluster: Cluster, node: int, window: int | None) -> None:
    group = mortal(cluster, node)
    with Channel.create("begun", cluster=cluster) as channel:
        fill(channel, 40)
        with pytest.raises(WorkerDied):
            group.begin_and_be(channel, 7, window, signal.SIGKILL).wait()
        assert channel.get_many(33) == list(range(7, 40))
    group.close()


def test_a_window_is_a_whole_number(channel: Channel) -> None:
    for window in (0, -1, 1.5, "2"):
        with pytest.raises((ValueError, TypeError), match=r"items\(\) of channel '.*': window= takes a whole number"):
            channel.items(window=window)  # type: ignore[arg-type]


async def test_a_loop_goes_on_after_a_wait_that_was_cancelled() -> None:
    channel = Channel.create("waits", local=True)
    items = channel.items()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(items), 0.01)
    await channel.put(1)
    assert await anext(items) == 1


async def test_who_handles_the_end_of_a_wait_finds_the_items_of_the_loop() -> None:
    channel = Channel.create("waits", local=True)
    await channel.put(1)
    task = asyncio.create_task(channel.items().__anext__())
    await asyncio.sleep(0)  # the loop has the item, and lets other tasks run
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        assert await channel.drain() == [1]


@pytest.mark.parametrize(
    "wait", [lambda channel: next(channel.items()), lambda channel: channel.lease(2).__enter__()], ids=["loop", "lease"]
)
def test_an_interrupted_wait_takes_no_later_item(wait: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Channel.create("waits", local=True)
    monkeypatch.setattr(LockGate, "wait", Mock(side_effect=KeyboardInterrupt))
    try:
        wait(channel)
    except KeyboardInterrupt:
        channel.put(1)
        assert channel.drain() == [1]
