"""Emulated networks between real workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rlinf_async import Channel, Cluster, NodePlacementStrategy
from tests._support.emulated_network_workers import Sender

pytestmark = pytest.mark.shared_cluster

DELAY = 0.05
MEGABYTE = 1_000_000

NETWORK = {
    "net_emulation": {
        "enabled": True,
        "crossdc_pairs": [
            {"src": ["near"], "dst": ["Far", "obs"], "delay_ms": DELAY * 1e3},
            {"src": ["thin", "stuck"], "dst": ["Far"], "delay_ms": 0},
        ],
        "bandwidth_groups": [
            {"members": ["thin:0-1"], "bandwidth_mbps": 80},
            {"members": ["stuck"], "bandwidth_mbps": 0.001},
        ],
    }
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(cluster_cfg=NETWORK, log_to_driver=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def groups(cluster: Cluster) -> Iterator[dict[str, Any]]:
    groups = {
        name: Sender.create_group().launch(cluster, NodePlacementStrategy([0] * ranks), name=name).wait_ready()
        for name, ranks in (("near", 1), ("FarGroup", 1), ("other", 1), ("thin", 2), ("stuck", 1))
    }
    yield groups
    for group in groups.values():
        group.close()


async def exchange(groups: dict[str, Any], src: str, dst: str, number: int, nbytes: int = 8) -> tuple[float, list[int]]:
    """Seconds from the first send to the last receive, and what came."""
    began = time.monotonic()
    _, [received] = await asyncio.gather(groups[src].send_some(dst, number, nbytes), groups[dst].recv_some(src, number))
    return time.monotonic() - began, received


async def test_a_message_of_a_pair_that_is_named_is_delayed_and_that_of_another_is_not(groups: dict[str, Any]) -> None:
    for src, dst in (("near", "FarGroup"), ("FarGroup", "near")):
        seconds, _ = await exchange(groups, src, dst, 1)
        assert seconds >= DELAY
    assert min([(await exchange(groups, "near", "other", 1))[0] for _ in range(5)]) < DELAY


async def test_messages_are_under_way_together_and_arrive_in_their_order(groups: dict[str, Any]) -> None:
    seconds, received = await exchange(groups, "near", "FarGroup", 100)
    assert DELAY <= seconds < 50 * DELAY
    assert received == list(range(100))


async def test_what_is_under_way_to_one_holds_up_nothing_that_is_meant_for_another(groups: dict[str, Any]) -> None:
    sending = groups["near"].send_to_both("FarGroup", "other")
    [order] = await sending
    received = await asyncio.gather(groups["FarGroup"].recv_some("near", 1), groups["other"].recv_some("near", 1))
    assert received == [[[0]], [[0]]]
    assert order == ["other", "FarGroup"]


async def test_a_blocking_method_and_send_tensor_are_delayed_too(groups: dict[str, Any]) -> None:
    receiving = groups["FarGroup"].recv_tensor_once("near")
    [seconds] = await groups["near"].send_tensor_once("FarGroup")
    await receiving
    assert seconds >= DELAY


async def test_a_line_is_shared_by_those_behind_it(groups: dict[str, Any]) -> None:
    """1 MB of each of two workers over 80 Mbit/s takes 0.2 s in all, or longer on a busy machine."""
    began = time.monotonic()
    sending = groups["thin"].send_some("FarGroup", 10, MEGABYTE // 10)
    received = await asyncio.gather(*(groups["FarGroup"].recv_some("thin", 10, rank) for rank in (0, 1)))
    seconds = time.monotonic() - began
    await sending
    assert received == [[list(range(10))]] * 2
    assert seconds >= 0.199


async def test_a_line_holds_up_nothing_that_does_not_cross_it(groups: dict[str, Any]) -> None:
    crossing = groups["stuck"].send_some("FarGroup", 1, MEGABYTE)  # for hours
    _, received = await exchange(groups, "other", "FarGroup", 20, MEGABYTE // 10)
    assert received == list(range(20))
    assert not crossing.done()
    crossing.cancel()


async def test_a_broadcast_arrives_when_the_farthest_has_it(groups: dict[str, Any]) -> None:
    members = [(name, 0) for name in ("near", "FarGroup", "other")]
    began = time.monotonic()
    values = await asyncio.gather(*(groups[name].broadcast_from(members, "near") for name, _ in members))
    assert time.monotonic() - began >= DELAY
    assert values == [["near"]] * 3
    began = time.monotonic()
    near_ones = [("near", 0), ("other", 0)]
    await asyncio.gather(*(groups[name].broadcast_from(near_ones, "near") for name, _ in near_ones))
    assert time.monotonic() - began < 20 * DELAY


async def test_a_put_to_a_channel_of_that_name_is_delayed_and_its_gets_are_not(
    cluster: Cluster, groups: dict[str, Any]
) -> None:
    async with Channel.create("obs", cluster=cluster) as far, Channel.create("local", cluster=cluster) as local:
        assert (await groups["near"].put_some(far, 5))[0] >= DELAY
        assert [await far.get() for _ in range(5)] == list(range(5))
        assert min([(await groups["near"].put_some(local, 1))[0] for _ in range(5)]) < DELAY
        await far.put("of the driver")
        assert await groups["near"].get_in_time(far, DELAY) == ["of the driver"]


async def test_a_channel_that_is_closed_has_what_was_put_before(cluster: Cluster, groups: dict[str, Any]) -> None:
    channel = await Channel.create("obs", cluster=cluster)
    await groups["near"].put_and_close(channel, 3)
    assert [item async for item in channel] == [0, 1, 2]


async def test_a_send_that_is_given_up_on_its_way_never_arrives(groups: dict[str, Any]) -> None:
    assert await groups["near"].send_in_time("FarGroup", DELAY / 5) == ["DeadlineExceeded"]
    _, received = await exchange(groups, "near", "FarGroup", 1)
    assert received == [0]
