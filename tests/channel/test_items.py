"""Items: how they go in, and come out."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rlinf_async import Channel, Cluster, DeadlineExceeded, SerializationError, WeightedItem, Work
from tests._support.until import until

pytestmark = pytest.mark.shared_cluster


def test_items_come_out_in_order_wherever_producer_and_consumer_are(channel: Channel, users: Any) -> None:
    for producer in range(3):
        for consumer in range(3):
            items = [(producer, consumer, number) for number in range(20)]
            put = users[producer].put_all(channel, items)
            assert users[consumer].get_all(channel, 20).wait() == [items]
            put.wait()


def test_every_way_of_calling_gives_the_same(channel: Channel, users: Any) -> None:
    for way in ("call", "acall", "later"):
        for user in users[0], users[2]:
            assert getattr(user, way)(channel, "put", way).wait() == [None]
            assert getattr(user, way)(channel, "get").wait() == [way]
            assert getattr(user, way)(channel, "put", way, 3, "key").wait() == [None]
            assert getattr(user, way)(channel, "get_batch", 3, "key").wait() == [[way]]


async def test_in_a_coroutine_of_the_driver_everything_is_a_work() -> None:
    async with (
        Cluster(num_nodes=1, log_to_driver=False) as cluster,
        Channel.create("obs", maxsize=1, cluster=cluster) as channel,
    ):
        work = channel.put("a")
        assert isinstance(work, Work)
        assert await work is None
        assert await channel.qsize() == 1
        assert await channel.full()
        with pytest.raises(asyncio.QueueFull):
            await channel.put_nowait("b")
        assert await channel.peek_all() == [WeightedItem(0, "a")]
        assert await channel.get() == "a"
        assert await channel.empty()
        with pytest.raises(asyncio.QueueEmpty):
            await channel.get_nowait()
        async with asyncio.TaskGroup() as tasks:
            got = tasks.create_task(channel.get_batch(2))
            tasks.create_task(channel.put("c", weight=1))
            tasks.create_task(channel.put("d", weight=1))
        assert got.result() == ["c", "d"]


def test_questions_are_answered_with_what_has_been_put_before(channel: Channel, users: Any) -> None:
    assert (channel.qsize(), channel.empty(), channel.full()) == (0, True, False)
    channel.put("a", weight=2)
    channel.put(torch.ones(100_000))
    assert (channel.qsize(), channel.empty(), channel.full()) == (2, False, False)
    assert (channel.qsize("other"), channel.empty("other")) == (0, True)
    first, second = channel.peek_all()
    assert first == WeightedItem(2, "a")
    assert torch.equal(second.item, torch.ones(100_000))
    assert str(channel).startswith("[WeightedItem(weight=2, item='a'), WeightedItem(")
    assert users[1].acall(channel, "qsize").wait() == [2]
    assert users[2].call(channel, "peek_all").wait()[0][0] == first
    assert channel.qsize() == 2
    channel.get()
    channel.get()


def test_a_full_key_holds_up_its_own_producers_only(one: Channel, users: Any) -> None:
    one.put("a", key="full")
    waiting = users[0].acall(one, "put", "b", key="full")
    users[0].acall(one, "put", "c", key="other").wait()
    assert one.get("other") == "c"
    assert not waiting.done()
    assert one.full("full")
    assert [one.get("full"), one.get("full")] == ["a", "b"]
    waiting.wait()


@pytest.mark.parametrize("way", ["call", "acall"])
def test_nowait_raises_what_asyncio_raises(one: Channel, users: Any, way: str) -> None:
    one.put_nowait("a")
    for user in users[0], users[2]:
        with pytest.raises(asyncio.QueueFull):
            getattr(user, way)(one, "put_nowait", "b").wait()
    with pytest.raises(asyncio.QueueFull):
        one.put_nowait("b")
    assert one.get_nowait() == "a"
    for user in users[0], users[2]:
        with pytest.raises(asyncio.QueueEmpty):
            getattr(user, way)(one, "get_nowait").wait()
    with pytest.raises(asyncio.QueueEmpty):
        one.get_nowait()


def test_large_items_arrive_whole_and_belong_to_the_consumer(channel: Channel, users: Any) -> None:
    tensor = torch.arange(1 << 20)
    channel.put([tensor, tensor[:10].clone(), "small"], weight=1)
    channel.put(torch.zeros(1 << 18), weight=1)
    (whole, _, small), zeros = channel.get_batch(2)
    assert torch.equal(whole, tensor)
    assert small == "small"
    zeros += 1
    users[2].call(channel, "put", tensor).wait()
    assert torch.equal(users[0].call(channel, "get").wait()[0], tensor)


def test_a_deadline_says_what_was_awaited_and_takes_nothing(channel: Channel, users: Any) -> None:
    for user in users[0], users[2]:
        for way in ("call", "acall", "later"):
            with pytest.raises(DeadlineExceeded, match=r"get\(\) from channel 'channel-\d' on node \d .*'k'.* 0.01 s"):
                getattr(user, way)(channel, "get", "k", timeout=0.01).wait()
    channel.put("later", key="k")
    assert channel.get("k", timeout=5) == "later"


def test_what_cannot_travel_is_named_and_nothing_is_put(channel: Channel) -> None:
    with pytest.raises(SerializationError, match=r"an item for channel 'channel-\d'.*item\['bad'\]"):
        channel.put({"bad": threading.Lock()})
    assert channel.empty()


def test_a_thousand_gets_on_a_thousand_keys_take_no_threads(channel: Channel, users: Any) -> None:
    waiting = users[1].get_on_many_keys(channel, 1000)
    assert channel.get("ready") == "waiting"
    for key in reversed(range(1000)):
        channel.put(key, key=key)
    ((order, threads),) = waiting.wait()
    assert order == list(reversed(range(1000)))
    assert threads <= 4


def test_a_fast_producer_is_held_to_max_bytes(cluster: Cluster, users: Any) -> None:
    limit = 48 << 20
    daemon = psutil.Process(cluster.status()["pid"])
    with Channel.create("bounded", max_bytes=limit) as channel:
        warming = users[0].produce(channel, 20, 1 << 20, 20)
        for _ in range(20):  # what the daemon needs once, it has from now on
            channel.get()
        warming.wait()
        before = held_by(daemon)
        works = [users[rank].produce(channel, 60, 1 << 20, 60) for rank in range(3)]
        until(lambda: channel.qsize() >= 40)
        most, seen = 0, []
        for _ in range(180):
            number, tensor = channel.get()
            seen.append(number)
            assert int(tensor[0]) == number % 251
            most = max(most, held_by(daemon))
        for work in works:
            work.wait()
        assert sorted(seen) == sorted(list(range(60)) * 3)
    assert most - before <= 1.5 * limit  # all items are 3.75 times the limit


def held_by(process: psutil.Process) -> int:
    """Bytes of a process's own memory and of the segments that it holds."""
    segments = {}
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            if "memfd:rlinf" in os.readlink(entry):
                status = entry.stat()
                segments[status.st_ino] = status.st_blocks * 512
        except FileNotFoundError:
            continue
    return int(process.memory_info().rss) + sum(segments.values())
