"""Several items at once, loops over a channel, and what a forgotten ``await`` says."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from rlinf_async import Channel, Cluster, EndOfChannel
from tests._support.channel_workers import launch_mortal

pytestmark = pytest.mark.shared_cluster


def fill(channel: Channel, count: int, **options: Any) -> None:
    for number in range(count):
        channel.put(number, weight=number, **options)


# -- several at once --------------------------------------------------------------------------------------------------


def test_every_way_of_calling_gives_the_same(channel: Channel, users: Any) -> None:
    for way in ("call", "acall", "later"):
        for user in users[0], users[2]:
            fill(channel, 6, key="key")
            assert getattr(user, way)(channel, "get_many", 2, "key").wait() == [[0, 1]]
            assert getattr(user, way)(channel, "get_many", 2, "key", wait=False).wait() == [[2, 3]]
            assert getattr(user, way)(channel, "drain", "key").wait() == [[4, 5]]
            assert getattr(user, way)(channel, "drain", "key").wait() == [[]]
            assert getattr(user, way)(channel, "get_many", 2, key="key", wait=False).wait() == [[]]


@pytest.mark.parametrize("count", [1, 5000])
def test_all_that_another_has_put_is_there_when_it_says_so(channel: Channel, users: Any, count: int) -> None:
    for user in users[1], users[2]:
        user.put_all(channel, list(range(count))).wait()
        assert channel.drain() == list(range(count))


def test_a_number_that_is_none_or_nothing_is_refused_at_once(channel: Channel) -> None:
    channel.put("kept")
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: channel.get_many(0), "n= takes a whole number from 1 to .*, got 0"),
        (lambda: channel.get_many(-1, wait=False), "n= takes a whole number from 1 to .*, got -1"),
        (lambda: channel.get_many(1.5), "n= takes a whole number, got 1.5"),  # type: ignore[call-overload]
        (lambda: channel.get_many(1, wait=0), "wait= takes True or False, got 0"),  # type: ignore[call-overload]
        (lambda: channel.get_many(1, wait=False, timeout=1), "with wait=False .* takes no timeout="),
        (lambda: channel.get_many(1, timeout=-1), "timeout= takes seconds, got -1"),
    ]
    for call, text in wrong:
        with pytest.raises((TypeError, ValueError), match=rf"get_many\(\) from channel 'channel-\d': {text}"):
            call()
    assert channel.drain() == ["kept"]


# -- those that do not have it ----------------------------------------------------------------------------------------


async def test_who_is_cancelled_while_it_gathers_leaves_everything_at_its_place(cluster: Cluster) -> None:
    async with Channel.create("cancelled-many", cluster=cluster) as channel:
        await channel.put("a")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await channel.get_many(3)
        await channel.put("b")
        assert await channel.drain() == ["a", "b"]


def test_who_is_cancelled_before_it_resumes_leaves_everything_at_its_place(channel: Channel, users: Any) -> None:
    for user in users[0], users[2]:
        waiting = user.cancelled_before_it_resumes(channel, "get_many", 2)
        user.turn().wait()
        fill(channel, 3)
        assert waiting.wait() == ["cancelled"]
        assert channel.get_many(3, timeout=5) == [0, 1, 2]


def test_what_a_killed_consumer_was_about_to_have_goes_to_the_next(
    channel: Channel, cluster: Cluster, users: Any
) -> None:
    mortal = launch_mortal(cluster, [1])
    fill(channel, 5)
    mortal.ask(channel, "get_many", 2, wait=False).wait()
    mortal.ask(channel, "drain").wait()
    mortal.arrived().wait()
    mortal.ask(channel, "get_many", 10).wait()  # and waits for more than there will be
    mortal.call(channel, "qsize", "other").wait()  # answered behind that
    channel.put(5)
    assert channel.qsize() == 0
    os.kill(mortal.pid().wait()[0], signal.SIGKILL)
    assert users[0].call(channel, "get_many", 6).wait() == [list(range(6))]
    mortal.close()


# -- in this process --------------------------------------------------------------------------------------------------


def test_a_local_channel_has_them_too() -> None:
    channel = Channel.create("local-many", local=True)
    assert channel.drain() == []
    fill(channel, 5)
    assert channel.get_many(2) == [0, 1]
    assert channel.get_many(2, wait=False) == [2, 3]
    waiting = channel.get_many(3, async_op=True)
    channel.close()
    assert waiting.wait() == [4]
    with pytest.raises(EndOfChannel):
        channel.drain()


# -- loops ------------------------------------------------------------------------------------------------------------


def test_a_plain_loop_has_everything_until_the_end(cluster: Cluster, users: Any) -> None:
    channel = Channel.create("looped", node_rank=1)
    seen = users.loop_over(channel)
    for item in range(30):
        channel.put(item)
    channel.close()
    assert sorted(item for items in seen.wait() for item in items) == list(range(30))
    assert list(channel) == []


async def test_in_a_coroutine_a_plain_loop_says_to_write_another(cluster: Cluster) -> None:
    async with Channel.create("async-loop", cluster=cluster) as channel:
        await channel.put("kept")
        with pytest.raises(TypeError, match="channel 'async-loop': write `async for item in channel` in a coroutine"):
            next(iter(channel))
        assert await channel.qsize() == 1


def test_to_look_for_an_item_takes_none_out(channel: Channel) -> None:
    channel.put("kept")
    with pytest.raises(TypeError, match="not a container"):
        "kept" in channel  # type: ignore[operator]  # noqa: B015
    assert channel.drain() == ["kept"]


# -- a forgotten await ------------------------------------------------------------------------------------------------

FORGOTTEN: dict[str, tuple[str, Callable[[Channel], Any]]] = {
    "bool": ("empty", lambda channel: not channel.empty()),
    "greater": ("qsize", lambda channel: channel.qsize() > 3),
    "less": ("qsize", lambda channel: channel.qsize() <= 3),
    "equal": ("qsize", lambda channel: channel.qsize() == 0),
    "unequal": ("get_nowait", lambda channel: channel.get_nowait() != "stop"),
    "plus": ("qsize", lambda channel: channel.qsize() + 1),
    "minus": ("qsize", lambda channel: 8 - channel.qsize()),
    "times": ("qsize", lambda channel: 2 * channel.qsize()),
    "share": ("qsize", lambda channel: channel.qsize() / 2),
    "range": ("qsize", lambda channel: range(channel.qsize())),
    "float": ("qsize", lambda channel: float(channel.qsize())),
    "len": ("drain", lambda channel: len(channel.drain())),
    "index": ("get_many", lambda channel: channel.get_many(1)[0]),
    "loop": ("get_batch", lambda channel: [item for item in channel.get_batch(1)]),  # noqa: C416
    "list": ("peek_all", lambda channel: list(channel.peek_all())),
    "unpack": ("get", lambda channel: [*channel.get()]),
}


@pytest.mark.parametrize(("method", "use"), FORGOTTEN.values(), ids=FORGOTTEN)
async def test_a_result_that_was_not_awaited_says_what_to_write(
    cluster: Cluster, method: str, use: Callable[[Channel], Any]
) -> None:
    async with Channel.create("forgotten", cluster=cluster) as channel:
        with pytest.raises(TypeError, match=rf"^{method}\(\) \w+ channel 'forgotten'.*: `await channel.{method}\(\)` "):
            use(channel)


async def test_works_are_told_apart_and_found_among_others(cluster: Cluster) -> None:
    async with Channel.create("told-apart", cluster=cluster) as channel:
        first, second = channel.qsize(), channel.qsize()
        assert first != second
        assert first in [second, first]
        assert {first: 1, second: 2}[second] == 2
        assert await first == await second == 0
