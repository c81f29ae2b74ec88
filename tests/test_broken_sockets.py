"""Sockets between processes that break while both ends live, and receivers without descriptors: nothing is lost."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from rlinf_async import Channel, Cluster, NodePlacementStrategy
from tests._support.socket_breaking_workers import (
    WAYS_TO_BREAK,
    Breaking,
    break_sockets,
    give_back,
    take_all_descriptors,
)


def in_time(test: Callable[..., Any]) -> Callable[..., Any]:
    """A test that fails after ten seconds, where it would hang."""

    @functools.wraps(test)
    async def timed(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(40):
            await test(*args, **kwargs)

    return timed


LARGE = 200_000
"""Bytes; more than rides in a frame."""


pytestmark = [pytest.mark.shared_cluster, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def pair(cluster: Cluster) -> AsyncIterator[Any]:
    """Two workers that have been called, and have talked to each other, so that there are sockets between all."""
    group = Breaking.create_group().launch(cluster, placement=NodePlacementStrategy([0, 0]), name="pair")
    for sender, receiver in ((0, 1), (1, 0)):
        sent = group[sender].send_numbers("pair", receiver, 1, 8)
        assert await group[receiver].recv_numbers("pair", sender, 1) == [[0]]
        await sent
    await group.note(-2)
    async with group:
        yield group


# -- messages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [8, LARGE])
@in_time
async def test_a_receiver_without_descriptors_gets_every_message_in_order(pair: Any, nbytes: int) -> None:
    assert await pair[1].exhaust() != [0]
    sent = pair[0].send_numbers("pair", 1, 20, nbytes)
    assert await pair[1].recv_numbers("pair", 0, 20) == [list(range(20))]
    await sent
    await pair[1].relieve()
    sent = pair[0].send_numbers("pair", 1, 5, nbytes)
    assert await pair[1].recv_numbers("pair", 0, 5) == [list(range(5))]
    await sent


@pytest.mark.parametrize("how", WAYS_TO_BREAK)
@pytest.mark.parametrize("rank", [0, 1], ids=["at the sender", "at the receiver"])
@in_time
async def test_messages_outlive_their_socket(pair: Any, how: str, rank: int) -> None:
    sent = pair[0].send_numbers("pair", 1, 60, LARGE, 0.001)
    received = pair[1].recv_numbers("pair", 0, 60)
    assert (await pair[rank].break_sockets_after(0.02, how))[0] > 0
    assert await received == [list(range(60))]
    await sent


@in_time
async def test_messages_that_are_not_received_yet_outlive_their_socket(pair: Any) -> None:
    await pair[0].send_numbers("pair", 1, 40, LARGE)
    await pair[1].break_sockets("close")
    sent = pair[0].send_numbers("pair", 1, 3, 8)
    assert await pair[1].recv_numbers("pair", 0, 43) == [[*range(40), 0, 1, 2]]
    await sent


@in_time
async def test_messages_of_both_directions_outlive_many_breaks(pair: Any) -> None:
    exchanged = [pair[rank].send_numbers("pair", 1 - rank, 40, nbytes, 0.005) for rank, nbytes in enumerate((8, LARGE))]
    received = [pair[rank].recv_numbers("pair", 1 - rank, 40) for rank in range(2)]
    for turn in range(5):
        await pair[turn % 2].break_sockets_after(0.03, ("shutdown", "garbage")[turn % 2 ^ turn // 2 % 2])
    for handle in received:
        assert await handle == [list(range(40))]
    for sent in exchanged:
        await sent


# -- calls ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", WAYS_TO_BREAK)
@pytest.mark.parametrize("side", ["worker", "driver"])
@in_time
async def test_calls_outlive_their_socket_and_run_once_in_order(
    cluster: Cluster, pair: Any, how: str, side: str
) -> None:
    before = [pair.note(number) for number in range(20)]
    slow = pair.sleep(0.2)
    if side == "driver":
        assert break_sockets(cluster._client, how)
    else:
        assert all(await pair.break_sockets(how))
    after = [pair.note(number) for number in range(20, 40)]
    async with asyncio.timeout(35):
        for number, handle in enumerate((*before, *after)):
            assert await handle == [number] * 2
        assert await slow == [0.2, 0.2]
    assert await pair.noted() == [[-2, *range(40)]] * 2


@pytest.mark.parametrize("how", WAYS_TO_BREAK)
@in_time
async def test_calls_between_workers_outlive_their_socket(pair: Any, how: str) -> None:
    async with asyncio.timeout(35):
        assert await pair[0].call_other("pair", 1, 10, how) == [list(range(1, 20))]
    assert await pair[1].noted() == [[-2, *range(20)]]


@in_time
async def test_relayed_calls_reach_a_worker_that_has_closed_the_socket_of_their_caller(
    cluster: Cluster, pair: Any
) -> None:
    assert break_sockets(cluster._client, "shutdown")
    slow = pair[0].sleep(1)  # while it is open, calls are relayed
    await asyncio.sleep(0.3)  # its broken socket is handed over, and there is another one
    computing = pair[0].close_sockets_and_compute(0.4)
    time.sleep(0.2)
    async with asyncio.timeout(10):
        assert [await handle for handle in [pair[0].note(number) for number in range(1, 6)]] == [
            [n] for n in range(1, 6)
        ]
        await asyncio.gather(slow, computing)


@in_time
async def test_a_caller_without_descriptors_gets_large_results(pair: Any) -> None:
    argument = np.arange(LARGE // 8)
    handles = [pair.double(argument) for _ in range(10)]
    taken = take_all_descriptors()
    try:
        async with asyncio.timeout(35):
            for handle in handles:
                for result in await handle:
                    assert (result == argument * 2).all()
    finally:
        give_back(taken)


@in_time
async def test_a_worker_without_descriptors_gets_large_arguments(pair: Any) -> None:
    argument = np.arange(LARGE // 8)
    await pair[1].exhaust()
    async with asyncio.timeout(35):
        for _ in range(3):
            assert await pair[1].note(7) == [7]
        assert await pair[1].total(argument) == [int(argument.sum())]
    await pair[1].relieve()


@in_time
async def test_a_stream_outlives_its_socket(cluster: Cluster, pair: Any) -> None:
    items = []
    async with asyncio.timeout(35):
        async for _, item in pair[1].count(60, 0.002):
            items.append(item)
            if item == 10:
                assert break_sockets(cluster._client, "close")
    assert items == list(range(60))


@in_time
async def test_a_call_can_be_cancelled_after_its_socket_broke(cluster: Cluster, pair: Any) -> None:
    waiting = pair[1].wait_for_cancel()
    await pair[1].note(1)
    assert break_sockets(cluster._client, "shutdown")
    await pair[1].note(2)
    waiting.cancel()
    async with asyncio.timeout(35):
        while -1 not in (await pair[1].noted())[0]:
            pass


# -- what a daemon sends --------------------------------------------------------------------------------------------


@in_time
async def test_a_worker_without_descriptors_gets_large_items_of_a_channel(cluster: Cluster, pair: Any) -> None:
    channel = Channel.create("items", cluster=cluster)
    await pair[1].exhaust()
    for number in range(10):
        await channel.put(np.full(LARGE // 8, number))
    async with asyncio.timeout(35):
        assert await pair[1].get_numbers(channel, 10) == [list(range(10))]
    await pair[1].relieve()
    assert await pair[1].note(3) == [3]
