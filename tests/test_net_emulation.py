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


async def test_a_blocking_method_and_send_tensor_are_delayed_too(groups: dict[str, Any]) -> None:
    receiving = groups["FarGroup"].recv_tensor_once("near")
    [seconds] = await groups["near"].send_tensor_once("FarGroup")
    await receiving
    assert seconds >= DELAY


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


async def test_a_send_that_is_given_up_on_its_way_never_arrives(groups: dict[str, Any]) -> None:
    assert await groups["near"].send_in_time("FarGroup", DELAY / 5) == ["DeadlineExceeded"]
    _, received = await exchange(groups, "near", "FarGroup", 1)
    assert received == [0]
