"""The end of a channel, of those who use it, and of the node where it lives."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import weakref
from typing import Any

import psutil
import pytest
import torch

from rlinf_async import Channel, ClosedError, Cluster, EndOfChannel, NodeLost
from tests._support.channel_workers import launch_mortal

pytestmark = pytest.mark.shared_cluster


def test_a_closed_channel_gives_what_it_has_and_then_ends(cluster: Cluster, users: Any) -> None:
    channel = Channel.create("closing", node_rank=1)
    seen = users.iterate(channel)
    for item in range(30):
        channel.put(item)
    channel.close()
    channel.close()
    assert sorted(item for items in seen.wait() for item in items) == list(range(30))
    for user in users[0], users[2]:
        with pytest.raises(EndOfChannel, match="channel 'closing' is closed"):
            user.call(channel, "get").wait()
        with pytest.raises(ClosedError, match="channel 'closing' is closed"):
            user.call(channel, "put", "x").wait()
    assert (channel.qsize(), channel.peek_all()) == (0, [])


def test_the_end_of_a_queue_keeps_nothing_of_those_who_were_told(cluster: Cluster) -> None:
    channel = Channel.create("told")
    channel.close()

    def put() -> weakref.ref[Any]:
        local = torch.zeros(1)
        try:
            channel.put("late")
        except ClosedError:
            return weakref.ref(local)
        raise AssertionError

    def get() -> weakref.ref[Any]:
        local = torch.zeros(1)
        try:
            channel.get()
        except EndOfChannel:
            return weakref.ref(local)
        raise AssertionError

    locals_of_those_told = [put(), get()]
    gc.collect()
    assert [local() for local in locals_of_those_told] == [None, None]


def test_a_daemon_at_its_limit_of_open_files_says_so_and_loses_nothing(cluster: Cluster, users: Any) -> None:
    everybody = psutil.Process().children(recursive=True)
    daemons = [process for process in everybody if "rlinf_launcher.daemon" in process.cmdline()]
    limits = [daemon.rlimit(psutil.RLIMIT_NOFILE) for daemon in daemons]
    with Channel.create("many-files", node_rank=0) as channel:
        channel.put(torch.arange(1 << 20))
        channel.put("small")
        for daemon, (_, most) in zip(daemons, limits, strict=True):
            daemon.rlimit(psutil.RLIMIT_NOFILE, (3, most))
        try:
            with pytest.raises(OSError, match=r"the daemon of node 0 .* 'many-files' .* `ulimit -n`.* stays"):
                users[0].call(channel, "get").wait()
            with pytest.raises(OSError, match=r"2 items .* cannot hand them over at once"):
                channel.peek_all()
            with pytest.raises(OSError, match=r"2 items .* they stay in the channel, take fewer: .*get_many\(n, wait"):
                channel.drain()
            assert channel.qsize() == 2
        finally:
            for daemon, both in zip(daemons, limits, strict=True):
                daemon.rlimit(psutil.RLIMIT_NOFILE, both)
        assert torch.equal(channel.get(), torch.arange(1 << 20))
        assert channel.get() == "small"


async def test_closing_the_cluster_ends_what_waits() -> None:
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        channel = await Channel.create("open", cluster=cluster)
        work = channel.get()
    with pytest.raises(ClosedError):
        await work
    with pytest.raises(ClosedError):
        await channel.put("x")


def test_what_a_coroutine_has_put_does_not_wait_for_a_blocking_method(channel: Channel, users: Any) -> None:
    put = users[0].put_in_a_crowd(channel, "kept back")
    blocked = users[0].call(channel, "get", "gate")
    assert channel.get(timeout=10) == "kept back"
    channel.put("open", key="gate")
    assert blocked.wait() == ["open"]
    put.wait()
    assert users[0].take().wait() == [[None]]


def test_whoever_gives_up_leaves_the_item(channel: Channel, users: Any) -> None:
    for user in users[0], users[2]:
        assert user.wait_and_give_up(channel, 0.01).wait() == ["gave up"]
    channel.put("a")
    assert channel.get() == "a"


def test_an_item_whose_consumer_is_cancelled_before_it_resumes_goes_back(channel: Channel, users: Any) -> None:
    for user in users[0], users[2]:
        waiting = user.cancelled_before_it_resumes(channel)
        user.turn().wait()
        channel.put("a")
        assert waiting.wait() == ["cancelled"]
        work = channel.get(async_op=True)
        assert work.wait() == "a"
        assert work.redelivered


@pytest.mark.parametrize("is_local", [False, True])
def test_a_forgotten_get_in_the_driver_gives_back_too(channel: Channel, is_local: bool) -> None:
    if is_local:
        channel = Channel.create("local", local=True)
    channel.put("a")
    channel.put("b")
    work = channel.get(async_op=True)
    gate = threading.Event()
    work._follow(gate.set)
    assert gate.wait(5)
    del work
    gc.collect()
    assert [channel.get(timeout=5), channel.get(timeout=5)] == ["a", "b"]


def test_what_a_killed_consumer_had_not_taken_goes_to_the_next_at_its_place(
    channel: Channel, cluster: Cluster, users: Any
) -> None:
    mortal = launch_mortal(cluster, [1])
    for item in range(4):
        channel.put(item if item % 2 else torch.full((20_000,), item))
    for _ in range(6):
        mortal.ask(channel, "get").wait()
    channel.put("last")
    mortal.arrived  # noqa: B018
    assert len(mortal.call(channel, "peek_all").wait()[0]) == 0
    os.kill(mortal.pid().wait()[0], signal.SIGKILL)
    seen = [users[0].redelivered(channel).wait()[0] for _ in range(5)]
    assert [int(item[0]) if isinstance(item, torch.Tensor) else item for item, _ in seen] == [0, 1, 2, 3, "last"]
    assert [flag for _, flag in seen] == [True] * 5
    mortal.close()


def test_what_was_accepted_outlives_its_producer_and_what_waited_does_not(one: Channel, cluster: Cluster) -> None:
    mortal = launch_mortal(cluster, [1, 0])
    for rank in (0, 1):
        mortal[rank].call(one, "put", torch.arange(1 << 18), key=rank).wait()
        mortal[rank].ask(one, "put", "waits", key=rank).wait()
        assert cluster.status()["channels"]["one"]["clients"] == 1
        os.kill(mortal[rank].pid().wait()[0], signal.SIGKILL)
        deadline = time.monotonic() + 5
        while cluster.status()["channels"]["one"]["clients"]:
            assert time.monotonic() < deadline
    for rank in (0, 1):
        assert torch.equal(one.get(rank), torch.arange(1 << 18))
        with pytest.raises(asyncio.QueueEmpty):
            one.get_nowait(rank)
    mortal.close()


def test_a_lost_node_fails_what_waits_for_its_channels_with_counts() -> None:
    with Cluster(local_nodes=2, log_to_driver=False) as cluster:
        channel = Channel.create("doomed", node_rank=1, cluster=cluster)
        works = [channel.get(async_op=True, key=key) for key in range(100)]
        channel.put("x")
        os.kill(cluster.status(1)["pid"], signal.SIGKILL)
        since = time.monotonic()
        for work in works:
            with pytest.raises(
                NodeLost, match=r"channel 'doomed' lived there, .*: 100 gets of this process waited, 0 pu"
            ):
                work.wait(5)
        assert time.monotonic() - since < 2
        with pytest.raises(NodeLost):
            channel.put("y")
        channel.close()
        with Channel.create("doomed", cluster=cluster) as another:
            another.put("z")
            assert another.get() == "z"
        with Channel.create("everywhere", distributed=True, cluster=cluster) as everywhere:
            everywhere.put("z", key=1)
            assert everywhere.get(key=1) == "z"
