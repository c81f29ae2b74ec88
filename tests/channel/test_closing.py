"""Closing a channel: puts and gets in flight, and processes that hear of it late."""

from __future__ import annotations

import asyncio
import gc
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from rlinf_async import Channel, ClosedError, Cluster, DeadlineExceeded, EndOfChannel
from tests._support.channel_workers import launch_mortal

pytestmark = pytest.mark.shared_cluster

WAYS = [{}, {"discard": True}]


@pytest.fixture(params=[0, 1, "distributed"], ids=["near", "far", "distributed"])
def place(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[dict[str, Any]]:
    yield {"distributed": True} if request.param == "distributed" else {"node_rank": request.param}
    assert cluster.status(0)["channels"] == cluster.status(1)["channels"] == {}


# -- who waits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", WAYS, ids=["plain", "discard"])
def test_puts_that_wait_for_room_end_with_the_channel(users: Any, place: dict[str, Any], how: dict[str, Any]) -> None:
    channel = Channel.create("full", maxsize=1, **place)
    channel.put("in")
    users.ask(channel, "put", "waits").wait()
    waiting = channel.put("waits", async_op=True)
    users.call(channel, "full").wait()  # behind the puts
    channel.close(**how)
    assert users.take_refusals().wait() == [["ClosedError"]] * 3
    with pytest.raises(ClosedError, match="channel 'full' is closed; nothing can be put there any more") as refused:
        waiting.wait(5)
    assert type(refused.value) is ClosedError
    if not how:
        assert channel.get() == "in"
    with pytest.raises(EndOfChannel):
        channel.get(timeout=5)


@pytest.mark.parametrize("discard", ["no", 1, None])
def test_discard_is_a_bool_and_anything_else_closes_nothing(place: dict[str, Any], discard: Any) -> None:
    with Channel.create("kept", **place) as channel:
        channel.put("in")
        with pytest.raises(TypeError, match=r"close\(discard=\) of channel 'kept' takes True or False, got "):
            channel.close(discard=discard)
        assert channel.get() == "in"


async def test_a_put_that_is_under_way_stays_with_the_channel_that_it_was_meant_for(cluster: Cluster) -> None:
    for round_ in range(20):
        channel = await Channel.create("remade", maxsize=1, cluster=cluster)
        puts = [channel.put((round_, index)) for index in range(4)]
        closing = channel.close()
        again = Channel.create("remade", cluster=cluster)
        outcomes = await asyncio.gather(*puts, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), ClosedError, ClosedError, ClosedError]
        await closing
        assert await channel.get(timeout=5) == (round_, 0)
        await again
        await again.close()
        another = await Channel.create("remade", cluster=cluster)
        assert await another.empty()
        await another.aclose(discard=True)


def test_puts_that_are_refused_by_a_closed_channel_unheard_are_logged_once(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    channel = Channel.create("lossy", maxsize=1)
    channel.put("in")
    for _ in range(9):
        channel.put("waits", async_op=True)
    channel.close()
    channel.get()
    channel.put("late", async_op=True)
    gc.collect()
    assert caplog.text.count("put() to channel 'lossy'") == 1
    assert "put() to channel 'lossy' on node 0 (key 'default_queue') failed, and nobody asked: ClosedE" in caplog.text


def test_keys_that_a_consumer_touches_first_after_the_close_are_drained(cluster: Cluster, users: Any) -> None:
    channel = Channel.create("spread", distributed=True)
    users[2].put_all(channel, [1, 2, 3], key="far").wait()
    channel.close()
    assert users[0].get_all(channel, 3, key="far").wait() == [[1, 2, 3]]
    for key in "far", "never":
        with pytest.raises(EndOfChannel):
            users[0].call(channel, "get", key).wait()


# -- who hears of it late ---------------------------------------------------------------------------------------------


async def test_who_touches_first_after_the_close_hears_so_and_never_meets_the_next_of_that_name(
    cluster: Cluster, users: Any, place: dict[str, Any]
) -> None:
    channel = Channel.create("epoch", cluster=cluster, **place)
    await users.keep(channel)  # before anybody knows which channel it is
    mine = pickle.loads(pickle.dumps(channel))
    await channel
    await users.keep(channel, "open")
    await channel.put("epoch 0")
    await channel.close(discard=True)
    async with Channel.create("epoch", cluster=cluster, **place) as again:
        await again.put("epoch 1")
        for kept in "channel", "open":
            assert await users.call_kept(kept, "put", "epoch 0") == ["ClosedError: channel 'epoch' is closed"] * 3
            assert await users.call_kept(kept, "get") == ["EndOfChannel: channel 'epoch' is closed"] * 3
            assert await users.call_kept(kept, "qsize") == ["0"] * 3
            assert await users.call_kept(kept, "close") == ["None"] * 3
        with pytest.raises(ClosedError) as refused:
            await mine.put("epoch 0")
        assert type(refused.value) is ClosedError
        assert await again.qsize() == 1
        assert await again.get() == "epoch 1"


async def test_a_channel_may_be_passed_on_before_it_exists_and_on_from_there(cluster: Cluster, users: Any) -> None:
    channel = Channel.create("early", cluster=cluster, node_rank=1)
    twice = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(channel))))
    assert await users.acall(channel, "put", "from a worker") == [None] * 3
    await twice.put("from here")
    assert await channel.qsize() == 4
    copy = pickle.loads(pickle.dumps(twice))
    assert copy._roster == channel._roster
    await copy.close()
    assert [await channel.get() for _ in range(4)] == ["from a worker"] * 3 + ["from here"]
    with pytest.raises(EndOfChannel):
        await channel.get()


async def test_one_that_is_looked_for_by_name_is_passed_on_as_the_one_that_was_found(
    cluster: Cluster, users: Any
) -> None:
    found = Channel.connect("sought", cluster=cluster)
    await users.keep(found)
    async with Channel.create("sought", cluster=cluster):
        await found
    async with Channel.create("sought", cluster=cluster) as again:
        assert await users.call_kept("channel", "put", "x") == ["ClosedError: channel 'sought' is closed"] * 3
        assert await again.empty()


async def test_those_to_whom_a_channel_was_passed_on_that_never_came_to_be_are_told_why(
    cluster: Cluster, users: Any
) -> None:
    never = Channel.create("never", cluster=cluster, node_rank=7)
    blob = pickle.dumps(never)
    with pytest.raises(ValueError, match="there is no node 7"):
        await never
    for copy in pickle.loads(blob), pickle.loads(pickle.dumps(never)):
        with pytest.raises(ClosedError, match=r"^channel 'never' could not be made: there is no node 7") as refused:
            await copy.get(timeout=5)
        assert not isinstance(refused.value, EndOfChannel), "a loop over its items would just end"
    sought = Channel.connect("never-sought", cluster=cluster, timeout=0.01)
    blob = pickle.dumps(sought)
    with pytest.raises(DeadlineExceeded):
        await sought
    with pytest.raises(ClosedError):
        await pickle.loads(blob).put("x", timeout=5)


def test_what_a_worker_passed_on_before_it_existed_outlives_the_worker_or_ends_with_its_group(
    cluster: Cluster, users: Any
) -> None:
    group = launch_mortal(cluster, [0])
    early = group.create_and_pass_on("orphan").wait()[0]
    assert early.qsize() == 0
    group.close()
    with pytest.raises(ClosedError):
        early.get(timeout=5)


async def test_who_makes_channel_after_channel_keeps_nothing_of_those_that_are_closed(cluster: Cluster) -> None:
    from rlinf_async._channels.replicas import Queues

    for _ in range(5):
        unused = await Channel.create("unused", cluster=cluster)
        await unused.close()
        used = await Channel.create("used", cluster=cluster, distributed=True)
        await used.put("x")
        await used.close()
        assert await used.get() == "x"
        with pytest.raises(EndOfChannel):
            await used.get()
    await cluster.status()  # whose answer comes behind what was said of the channels
    assert not Queues.of(cluster._client)._queues


# -- in one process ---------------------------------------------------------------------------------------------------


async def test_a_local_channel_closes_likewise() -> None:
    channel = Channel.create("local", maxsize=1, local=True)
    await channel.put("in")
    waiting = channel.put("waits")
    await channel.close()
    with pytest.raises(ClosedError, match="channel 'local' is closed"):
        await waiting
    assert await channel.get() == "in"
    with pytest.raises(EndOfChannel):
        await channel.get()
    channel = Channel.create("local", local=True)
    getting = channel.get(key="other")
    await channel.put("in")
    await channel.aclose()
    await channel.aclose(discard=True)
    for get in getting, channel.get():
        with pytest.raises(EndOfChannel, match="channel 'local' is closed"):
            await get
