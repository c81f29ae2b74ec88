"""Puts into channels without a bound: done once the kernel has the bytes, and never lost after that."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch

from rlinf_async import Channel, ClosedError, Cluster, EndOfChannel, WorkerDied
from tests._support.channel_workers import launch_mortal

pytestmark = pytest.mark.shared_cluster


def test_what_was_put_outlives_a_producer_that_is_killed_at_once(cluster: Cluster) -> None:
    items = [torch.full((20_000,), number % 251, dtype=torch.uint8) if number % 3 else number for number in range(60)]
    for attempt in range(5):
        with Channel.create("unbounded", cluster=cluster) as channel:
            group = launch_mortal(cluster, [0], f"hasty-{attempt}")
            with pytest.raises(WorkerDied):
                group.put_and_die(channel, items).wait()
            assert channel.qsize() == len(items)
            for item in items:
                got = channel.get()
                assert got == item if isinstance(item, int) else torch.equal(got, item)
            group.close()


@pytest.mark.parametrize("nbytes", [10, 100_000])
def test_a_close_in_the_midst_of_puts_loses_none_that_returned_and_refuses_the_others(
    cluster: Cluster, users: Any, nbytes: int
) -> None:
    for _ in range(3):
        with Channel.create("closing", max_bytes=256 << 20) as channel:
            putting = users.put_until_closed(channel, 4, nbytes)
            while channel.qsize() < 30:
                pass
            began = time.monotonic()
            channel.close()
            assert time.monotonic() - began < 1.5, "everybody answers"
            found: dict[tuple[int, int], int] = {}
            for rank, index, number, _ in channel_rest(channel):
                assert number == found.get((rank, index), 0), "in order, and none is missing"
                found[rank, index] = number + 1
            for rank, (counts, refused) in enumerate(putting.wait()):
                assert refused
                for index, count in enumerate(counts):
                    # One more may be in: its put was given up for the channel's end before it heard that it was.
                    assert found.get((rank, index), 0) - count in (0, 1)


def channel_rest(channel: Channel) -> Iterator[Any]:
    """What is in a closed channel."""
    while True:
        try:
            yield channel.get()
        except EndOfChannel:
            return


def test_a_stopped_producer_holds_up_no_close_and_hears_what_is_lost(cluster: Cluster) -> None:
    group = launch_mortal(cluster, [0], "stopped")
    (pid,) = group.pid().wait()
    with Channel.create("stopped", cluster=cluster) as channel:
        group.put_all(channel, ["first", "second"]).wait()
        os.kill(pid, signal.SIGSTOP)
        try:
            while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
                pass
            began = time.monotonic()
            channel.close()
            assert time.monotonic() - began < 1.5
        finally:
            os.kill(pid, signal.SIGCONT)
        with pytest.raises(ClosedError, match=r"came there after it had been closed|is closed"):
            group.put_all(channel, ["third"] * 100_000).wait()
        assert list(channel_rest(channel)) == ["first", "second"]
    group.close()


def test_a_put_is_done_when_the_kernel_has_it(cluster: Cluster, users: Any) -> None:
    with Channel.create("stalled", cluster=cluster) as channel:
        (done,) = users.execute_on(0).put_past_a_stopped_daemon(channel, cluster.status()["pid"], 100, 30_000).wait()
        assert 0 < done < 100
        assert channel.qsize() == 101


def test_who_has_heard_that_something_was_put_finds_it(cluster: Cluster, users: Any) -> None:
    with Channel.create("heard", cluster=cluster) as channel:
        users[0].put_all(channel, [1]).wait()
        for count in range(2, 200):
            users[0].call(channel, "put", count).wait()
            assert channel.qsize() == count
        for _ in range(200):
            users[0].call(channel, "put", "x", 0, "other").wait()
            assert channel.get_nowait("other") == "x"
