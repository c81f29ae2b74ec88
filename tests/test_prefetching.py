"""Prefetching consumers: the same behaviour as without prefetching."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psutil
import pytest
import torch

from rlinf_async import Channel, Cluster, NodePlacementStrategy, WorkerDied
from tests._support.channel_workers import User

pytestmark = pytest.mark.shared_cluster

COUNT = 60
"""Gets one after the other: more than enough."""

IN_FLIGHT = 4


class Reader(User):
    """Gets one by one or with several gets in flight, and then something happens to it."""

    def __init__(self) -> None:
        super().__init__()

    async def get_in_a_coroutine(self, channel: Channel, count: int) -> list[Any]:
        return [await channel.get() for _ in range(count)]

    def get_in_flight(self, channel: Channel, count: int) -> list[Any]:
        works = deque(channel.get(async_op=True) for _ in range(IN_FLIGHT))
        found = []
        for left in reversed(range(count)):
            found.append(works.popleft().wait())
            if left >= IN_FLIGHT:
                works.append(channel.get(async_op=True))
        return found

    async def get_in_flight_in_a_coroutine(self, channel: Channel, count: int) -> list[Any]:
        works = deque(channel.get() for _ in range(IN_FLIGHT))
        found = []
        for left in reversed(range(count)):
            found.append(await works.popleft())
            if left >= IN_FLIGHT:
                works.append(channel.get())
        return found

    def get_and_be(self, channel: Channel, count: int, sent: int) -> list[Any]:
        """With one more, if it ever comes to that."""
        items = [channel.get() for _ in range(count)]
        os.kill(os.getpid(), sent)
        return [*items, channel.get()]

    def get_in_flight_and_be(self, channel: Channel, count: int, sent: int) -> list[Any]:
        """With others that were asked for and perhaps came."""
        items = self.get_in_flight(channel, count)
        others = [channel.get(async_op=True) for _ in range(IN_FLIGHT)]
        os.kill(os.getpid(), sent)
        return [*items, *[work.wait() for work in others]]

    def get_in_threads(self, channel: Channel, count: int, threads: int) -> list[list[Any]]:
        found: list[list[Any]] = [[] for _ in range(threads)]

        def get(mine: list[Any]) -> None:
            mine += [channel.get() for _ in range(count)]

        readers = [threading.Thread(target=get, args=(mine,)) for mine in found]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(num_nodes=2, local_nodes=2, log_to_driver=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def readers(cluster: Cluster) -> Iterator[Any]:
    """One on each node."""
    group = Reader.create_group().launch(cluster, placement=NodePlacementStrategy([0, 1]), name="readers")
    yield group.wait_ready()
    group.close()


@pytest.fixture
def channel(cluster: Cluster) -> Iterator[Channel]:
    """It holds the numbers from 0 to 199."""
    with Channel.create("numbers") as channel:
        for number in range(200):
            channel.put(number)
        yield channel


WAYS = pytest.mark.parametrize(
    "way", ["get_all", "get_in_a_coroutine", "get_in_flight", "get_in_flight_in_a_coroutine"]
)


@WAYS
@pytest.mark.parametrize("rank", [0, 1])
def test_what_it_has_not_had_is_there_for_all_to_see_and_to_have(
    channel: Channel, readers: Any, rank: int, way: str
) -> None:
    reader = readers[rank]
    assert getattr(reader, way)(channel, COUNT).wait() == [list(range(COUNT))]
    assert channel.qsize() == 200 - COUNT
    assert getattr(reader, way)(channel, COUNT).wait() == [list(range(COUNT, 2 * COUNT))]
    assert [item.item for item in channel.peek_all()] == list(range(2 * COUNT, 200))
    assert getattr(reader, way)(channel, 20).wait() == [list(range(140 - 20, 140))]
    assert [channel.get(), channel.get_nowait(), channel.get_batch(0)] == [140, 141, [142]]
    assert reader.acall(channel, "get_nowait").wait() == [143]


def test_what_it_asks_for_besides_comes_in_order(channel: Channel, readers: Any) -> None:
    expected = 0
    for what, count in (("get_nowait", 1), ("get_batch", 1), ("qsize", 0), ("get", 1)):
        assert readers[0].get_all(channel, 40).wait() == [list(range(expected, expected + 40))]
        expected += 40
        (found,) = readers[0].call(channel, what).wait()
        assert found in (expected, [expected], 200 - expected)
        expected += count


@WAYS
@pytest.mark.parametrize("rank", [0, 1])
def test_all_that_is_there_includes_what_a_process_has_read_ahead(
    channel: Channel, readers: Any, rank: int, way: str
) -> None:
    reader = readers[rank]
    assert getattr(reader, way)(channel, COUNT).wait() == [list(range(COUNT))]
    assert reader.call(channel, "get_many", 10, wait=False).wait() == [list(range(COUNT, COUNT + 10))]
    assert getattr(reader, way)(channel, COUNT).wait() == [list(range(COUNT + 10, 2 * COUNT + 10))]
    assert channel.drain() == list(range(2 * COUNT + 10, 200))
    assert reader.acall(channel, "drain").wait() == [[]]


@WAYS
def test_two_under_one_key_have_everything_once_and_each_in_order(channel: Channel, readers: Any, way: str) -> None:
    both = getattr(readers, way)(channel, 100).wait()
    assert sorted([*both[0], *both[1]]) == list(range(200))
    assert all(items == sorted(items) for items in both)


def test_threads_share_what_is_read_ahead(channel: Channel, readers: Any) -> None:
    (found,) = readers[0].get_in_threads(channel, 50, 4).wait()
    assert sorted(item for items in found for item in items) == list(range(200))
    assert all(items == sorted(items) for items in found)


def test_tensors_among_numbers_come_in_order(cluster: Cluster, readers: Any) -> None:
    with Channel.create("mixed") as channel:
        for number in range(120):
            channel.put(torch.full((20_000,), number) if number % 20 > 15 else number)
        for rank in 0, 1:
            (found,) = readers[rank].get_all(channel, 55).wait()
            numbers = [int(item[0]) if isinstance(item, torch.Tensor) else item for item in found]
            assert numbers == list(range(55 * rank, 55 * rank + 55))
        assert channel.qsize() == 10


@pytest.mark.parametrize("way", ["get_and_be", "get_in_flight_and_be"])
def test_whoever_is_killed_with_items_ahead_has_had_those_that_it_had_and_no_more(
    channel: Channel, cluster: Cluster, way: str
) -> None:
    placement = NodePlacementStrategy([0])
    with closing(Reader.create_group().launch(cluster, placement=placement, name="mortal").wait_ready()) as mortal:
        with pytest.raises(WorkerDied):
            getattr(mortal, way)(channel, COUNT, signal.SIGKILL).wait()
        assert [channel.get() for _ in range(200 - COUNT)] == list(range(COUNT, 200))


def test_whoever_is_stopped_holds_others_up_for_moments_only_and_then_has_what_they_left(
    channel: Channel, cluster: Cluster
) -> None:
    placement = NodePlacementStrategy([0])
    with closing(Reader.create_group().launch(cluster, placement=placement, name="stopped").wait_ready()) as group:
        (pid,) = group.pid().wait()
        reading = group.get_and_be(channel, COUNT, signal.SIGSTOP)
        try:
            while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
                pass
            assert channel.get(timeout=20) == COUNT
            assert channel.qsize() == 200 - COUNT - 1
        finally:
            os.kill(pid, signal.SIGCONT)
        assert reading.wait() == [[*range(COUNT), COUNT + 1]]
    assert channel.get() == COUNT + 2


def test_a_group_that_is_closed_leaves_what_it_has_not_had(channel: Channel, cluster: Cluster) -> None:
    placement = NodePlacementStrategy([0])
    with closing(Reader.create_group().launch(cluster, placement=placement, name="closing").wait_ready()) as group:
        assert group.get_in_a_coroutine(channel, COUNT).wait() == [list(range(COUNT))]
    assert channel.get() == COUNT
    assert channel.qsize() == 200 - COUNT - 1
