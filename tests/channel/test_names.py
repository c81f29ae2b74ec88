"""Names: who finds which channel, and where it lives."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
from typing import Any

import pytest

from rlinf_async import Channel, ClosedError, Cluster, ConfigError, DeadlineExceeded, EndOfChannel, Experience, settings
from tests._support.channel_workers import launch_mortal

pytestmark = pytest.mark.shared_cluster


def test_a_name_is_taken_until_the_channel_is_closed(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    first = Channel.create("taken", maxsize=7)
    first.put("here")
    with caplog.at_level(logging.WARNING):
        second = Channel.Create("taken", maxsize=3)
    assert "there is a channel named 'taken' already: connected to it" in caplog.text
    assert (second.get(), second.maxsize) == ("here", 7)
    assert Channel.connect("taken", timeout=0).maxsize == 7
    second.close()
    with pytest.raises(ClosedError, match="channel 'taken' is closed"):
        first.put("x")
    with Channel.create("taken", maxsize=3) as third:
        assert third.maxsize == 3
    assert cluster.status()["channels"] == {}


def test_connecting_waits_for_the_name(cluster: Cluster, users: Any) -> None:
    got = users.connect("to-be")
    with Channel.create("to-be", node_rank=1) as channel:
        for item in range(3):
            channel.put(item)
        assert sorted(got.wait()) == [0, 1, 2]
        assert users[0].connect(name="to-be", timeout=5).cancel() is None
    with pytest.raises(DeadlineExceeded, match=r"no channel named 'never' within 0.05 s; there are: none"):
        Channel.connect("never", timeout=0.05)


def test_connecting_ends_although_the_daemon_that_knows_the_names_is_frozen(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(settings.WAIT_ANSWER_S.variable, "0.1")
    daemon = cluster.status()["pid"]
    os.kill(daemon, signal.SIGSTOP)
    try:
        with pytest.raises(DeadlineExceeded, match=r"within 0.05 s, and for 0.1 s more node 0 has not said .* daemon"):
            Channel.connect("never", timeout=0.05)
    finally:
        os.kill(daemon, signal.SIGCONT)
    with Channel.create("known"):
        assert Channel.connect("known", timeout=5).qsize() == 0


def test_a_worker_makes_a_channel_and_passes_it_on(users: Any) -> None:
    channel = users[2].create(name="made", node_id=1, maxsize=2).wait()[0]
    assert repr(channel) == "<Channel made [node 1 | maxsize 2]>"
    users[0].call(channel, "put", "x").wait()
    assert users[1].call(channel, "get").wait() == ["x"]
    assert channel.empty()
    again = users[1].create_in_a_coroutine("made-2").wait()[0]
    assert again.get() == "at once"
    again.close()
    channel.close()


def test_a_workers_channel_outlives_it_and_ends_with_its_group(cluster: Cluster, users: Any) -> None:
    group = launch_mortal(cluster, [1, 1])
    channel = group[0].create("heirloom").wait()[0]
    channel.put("kept")
    os.kill(group[0].pid().wait()[0], signal.SIGKILL)
    assert group[1].call(channel, "get").wait() == ["kept"]
    channel.put("lost")
    group.close()
    with pytest.raises(ClosedError, match="the process that had created it is gone, or its group is closed"):
        channel.get(timeout=5)
    with Channel.create("heirloom") as another:
        another.put("x")


def test_no_such_node_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match=r"channel 'x': there is no node 7, the run has nodes \[0, 1\]"):
        Channel.create("x", node_rank=7)


def test_several_open_clusters_have_to_be_told_apart(cluster: Cluster) -> None:
    with Cluster(num_nodes=1, log_to_driver=False) as other:
        with pytest.raises(RuntimeError, match=r"2 clusters are open in this process: .*cluster="):
            Channel.create("x")
        with Channel.create("x", cluster=other) as there, Channel.create("x", cluster=cluster) as here:
            there.put("there")
            here.put("here")
            travelled = pickle.loads(pickle.dumps(there))
            assert (travelled.get(), here.get()) == ("there", "here")


def test_a_key_of_a_distributed_channel_lives_where_it_was_first_touched(cluster: Cluster, users: Any) -> None:
    with Channel.create("spread", distributed=True) as channel:
        assert repr(channel) == "<Channel spread [2 nodes]>"
        users[2].put_all(channel, [1, 2, 3], key="far").wait()
        users[1].put_all(channel, [4, 5, 6], key="near").wait()
        assert cluster.status(0)["channels"]["spread"]["keys"] == 1
        assert cluster.status(1)["channels"]["spread"]["keys"] == 1
        assert users[0].get_all(channel, 3, key="far").wait() == [[1, 2, 3]]
        assert [channel.get("near") for _ in range(3)] == [4, 5, 6]
    with pytest.raises(ClosedError):
        channel.put("x", key="far")


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("kind", [Channel, Experience])
async def test_one_that_was_closed_before_it_is_used_here_says_so_of_its_counts(
    cluster: Cluster, kind: Any, is_known: bool
) -> None:
    """Passed on before or after it is known where it lives."""
    made = kind.create("early")
    if is_known:
        await made.stats()
    passed = pickle.loads(pickle.dumps(made))
    await made.stats()
    await made.aclose()
    with pytest.raises(ClosedError, match=f"{kind.__name__.lower()} 'early'"):
        await passed.stats()


def test_a_local_channel_is_a_queue_of_each_process(users: Any) -> None:
    channel = Channel.create("local", maxsize=1, local=True)
    assert channel.is_local
    item = object()
    channel.put(item)
    with pytest.raises(asyncio.QueueFull):
        channel.put_nowait(item)
    assert str(channel) == f"[WeightedItem(weight=0, item={item!r})]"
    assert channel.get() is item
    with pytest.raises(asyncio.QueueEmpty):
        channel.get_nowait()
    with pytest.raises(DeadlineExceeded, match="channel 'local' on this process"):
        channel.get(timeout=0.01)
    users[0].call(channel, "put", "there").wait()
    assert users[0].call(channel, "get").wait() == ["there"]
    assert users[1].call(channel, "empty").wait() == [True]
    channel.close()
    with pytest.raises(EndOfChannel):
        channel.get()
    with pytest.raises(ClosedError):
        channel.put("x")


async def test_a_local_channel_between_coroutines() -> None:
    channel = Channel.create("pipe", maxsize=2, local=True)

    async def produce() -> None:
        async with channel:
            for item in range(100):
                await channel.put(item, weight=1)

    async def consume() -> list[Any]:
        return [item async for item in channel]

    _, seen = await asyncio.gather(produce(), consume())
    assert seen == list(range(100))


async def test_a_local_get_that_is_cancelled_leaves_the_item() -> None:
    channel = Channel.create("given-back", local=True)
    task = asyncio.create_task(channel.get())
    await asyncio.sleep(0)
    channel.put("a")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await channel.get(timeout=1) == "a"
