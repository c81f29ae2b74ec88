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

from rlinf_async import Channel, ClosedError, Cluster, DeadlineExceeded, SerializationError, WeightedItem, Work

pytestmark = pytest.mark.shared_cluster


def test_items_come_out_in_order_wherever_producer_and_consumer_are(channel: Channel, users: Any) -> None:
    for producer in range(3):
        for consumer in range(3):
            items = [(producer, consumer, number) for number in range(20)]
            put = users[producer].put_all(channel, items)
            assert users[consumer].get_all(channel, 20).wait() == [items]
            put.wait()


def test_the_driver_puts_and_gets_too(channel: Channel, users: Any) -> None:
    got = users[2].get_all(channel, 2)
    channel.put("a")
    channel.put({"b": torch.ones(3)})
    assert str(got.wait()) == str([["a", {"b": torch.ones(3)}]])
    users[1].put_all(channel, ["c"]).wait()
    assert channel.get() == "c"


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


def test_the_truth_of_a_work_is_an_error_whether_it_is_done_or_not(channel: Channel) -> None:
    work = channel.get(async_op=True)
    said = (
        r"get\(\) from channel 'channel-\d' .* is a Work and not its result: `await channel.get\(\)` \(or `.wait\(\)`\)"
    )
    with pytest.raises(TypeError, match=said):
        bool(work)
    channel.put("x")
    assert work.wait() == "x"
    with pytest.raises(TypeError, match=said):
        bool(work)


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


def test_keys_are_what_a_dict_takes_them_for(channel: Channel) -> None:
    for key, same in ((1, True), (("a", 1), ("a", 1.0)), (None, None), (frozenset("ab"), frozenset("ba"))):
        channel.put(repr(key), key=key)
        assert channel.qsize(same) == 1
        assert channel.get(key=same) == repr(key)
    with pytest.raises(TypeError, match="unhashable"):
        channel.put("x", key=["a"])


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


def test_batches_follow_their_weights(channel: Channel) -> None:
    for weight in (1, 2, 3, 4):
        channel.put(weight, weight)
    assert channel.get_batch(3) == [1, 2]
    assert channel.get_batch(6) == [3]
    with pytest.raises(ValueError, match=r"weighs 4, which is more than get_batch's target_weight 3"):
        channel.get_batch(3)
    assert channel.get() == 4
    with pytest.raises(ValueError, match=r"target_weight= takes a whole number from 0 .*, got -1"):
        channel.get_batch(-1)


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


def test_a_put_that_is_too_late_leaves_nothing(one: Channel) -> None:
    one.put("a")
    with pytest.raises(DeadlineExceeded, match=r"put\(\) to channel 'one' on node 0 .* was not done within 0.01 s"):
        one.put("b", timeout=0.01)
    work = one.put("c", async_op=True, timeout=0)
    with pytest.raises(DeadlineExceeded, match=r"was not done within 0 s"):
        work.wait(30)
    assert one.get() == "a"
    assert one.empty()


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
        works = [users[rank].produce(channel, 60, 1 << 20, 20) for rank in range(3)]
        most, seen = 0, []
        for _ in range(180):
            number, tensor = channel.get()
            seen.append(number)
            assert int(tensor[0]) == number % 251
            most = max(most, held_by(daemon))
        for work in works:
            work.wait()
        assert sorted(seen) == sorted(list(range(60)) * 3)
    assert most - before <= 1.2 * limit


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


def test_an_item_that_can_never_enter_is_an_error(cluster: Cluster, users: Any) -> None:
    with Channel.create("small", max_bytes=1000) as channel:
        with pytest.raises(ValueError, match=r"can never enter channel 'small', whose items may have 1000 bytes"):
            users[2].call(channel, "put", bytes(1001)).wait()
        channel.put(bytes(500))
        assert len(channel.get()) == 500


def test_the_ledger_of_a_channel_is_closed(cluster: Cluster, users: Any) -> None:
    for options in ({}, {"distributed": True}, {"local": True}):
        channel = Channel.create("counted", **options)
        for number in range(6):
            channel.put(number, key=("env", number % 2))
        assert channel.get(key=("env", 0)) == 0
        if "local" not in options:
            assert users[2].call(channel, "get", key=("env", 1)).wait() == [1]
        else:
            channel.get(key=("env", 1))
        while (stats := channel.stats()).got < 2:
            pass
        assert (stats.put, stats.got, stats.dropped, stats.present) == (6, 2, {}, 4)
        assert stats.keys == {("env", 0): (3, 1, 2), ("env", 1): (3, 1, 2)}
        channel.close()
        if "distributed" not in options:
            assert channel.stats().present == 4
        channel.close(discard=True)
        if "local" not in options:
            with pytest.raises(ClosedError, match="channel 'counted': it is closed, and everything in it"):
                channel.stats()
