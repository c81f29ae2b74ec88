"""Groups over several nodes: two daemons on this machine, gRPC between them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch

from rlinf_async import Cluster, ConfigError, NodeLost, NodePlacementStrategy, WorkerDied
from tests._support.workers import Parent, Plain, SeedWorker

pytestmark = pytest.mark.shared_cluster
LOCAL_NODES = 2

BOTH = NodePlacementStrategy([0, 0, 1, 1])


@pytest.fixture(scope="module")
def group(cluster: Cluster) -> Iterator[Any]:
    group = Plain.create_group(2).launch(cluster, placement=BOTH, name="both")
    yield group
    group.close()


def test_a_group_spans_nodes(group: Any) -> None:
    assert group.hello().wait() == [0, 1, 2, 3]
    assert group.environment("NODE_RANK").wait() == ["0", "0", "1", "1"]
    assert group.environment("CLUSTER_NODE_RANK").wait() == ["0", "0", "1", "1"]
    assert "4 workers on 2 nodes" in repr(group)


def test_a_group_call_crosses_the_network_once_per_node(cluster: Cluster, group: Any) -> None:
    group.hello().wait()
    before = cluster.status()["calls_sent"]["1"]
    for _ in range(10):
        group.hello().wait()
    group.echo(torch.zeros(1 << 20)).wait()
    assert cluster.status()["calls_sent"]["1"] == before + 11


async def test_a_cancel_reaches_every_node(group: Any) -> None:
    await group.run("self.log.clear()")
    handle = group.sleep(60)
    assert await group.noted() == [["sleeping"]] * 4
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await handle
    since = time.monotonic()
    assert await group.was_cancelled() == [True] * 4
    assert time.monotonic() - since < 0.5


def test_torch_collectives_work_over_nodes(cluster: Cluster) -> None:
    group = SeedWorker.create_group().launch(cluster, placement=BOTH, name="gloo")
    assert torch.equal(group.initialize().wait()[3], torch.tensor([[4.0]]))
    group.close()


def test_a_worker_launches_a_group_on_another_node(cluster: Cluster) -> None:
    group = Parent.create_group().launch(cluster, placement=NodePlacementStrategy([1]), name="far")
    assert group.children().wait() == [[["far:0:0", "far:0:1"], [0, 0]]]
    pids = group.child_pids().wait()[0]
    group.close()
    deadline = time.monotonic() + 5
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline:
        os.sched_yield()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_death_on_another_node_is_told_within_a_second(cluster: Cluster) -> None:
    group = Plain.create_group().launch(cluster, placement=BOTH, name="mortal").wait_ready()
    since = time.monotonic()
    with pytest.raises(WorkerDied, match=r"rank 3 of group 'mortal' on local-1 .*killed by SIGKILL"):
        group.die([3], "SIGKILL").wait()
    assert time.monotonic() - since < 1
    group.close()


def test_the_configuration_says_for_how_long_a_node_may_be_silent() -> None:
    with Cluster(cluster_cfg={"lease_s": 4}, local_nodes=2, log_to_driver=False) as cluster:
        assert cluster.status(0)["leases"] == {"1": 4.0}
        assert cluster.status(1)["leases"] == {"0": 4.0}
        assert cluster.status(1)["links_down"] == {}


def test_more_nodes_than_there_are_is_an_error_not_a_wait() -> None:
    since = time.monotonic()
    said = r"num_nodes=3, but this run has 1 \(localhost\): start it with `rlinf-l.* or Cluster\(local_nodes=3\)"
    with pytest.raises(ConfigError, match=said):
        Cluster(num_nodes=3)
    assert time.monotonic() - since < 15


def test_a_lost_node_fails_what_waits_for_it_and_leaves_the_rest() -> None:
    with Cluster(local_nodes=2, log_to_driver=False) as cluster:
        group = Plain.create_group().launch(cluster, placement=BOTH, name="parted").wait_ready()
        pids = group.pid().wait()
        daemon = cluster.status(1)["pid"]
        handle = group.sleep(60)
        os.kill(daemon, signal.SIGKILL)
        since = time.monotonic()
        with pytest.raises(NodeLost, match="local-1"):
            handle.wait()
        assert time.monotonic() - since < 1
        assert group.execute_on(0, 1).hello().wait() == [0, 1]
        with pytest.raises(NodeLost, match="local-1"):
            group.hello().wait()
        deadline = time.monotonic() + 5  # they die with their daemon, but the news of it may be faster
        while any(psutil.pid_exists(pid) for pid in pids[2:]) and time.monotonic() < deadline:
            os.sched_yield()
        assert not any(psutil.pid_exists(pid) for pid in pids[2:])


@pytest.mark.slow
def test_a_node_that_is_lost_during_a_transfer_leaves_the_others_and_late_comers_are_told() -> None:
    with Cluster(local_nodes=2, log_to_driver=False) as cluster:
        group = Plain.create_group().launch(cluster, placement=NodePlacementStrategy([0, 1]), name="torn").wait_ready()
        handles = [group[1].echo(torch.zeros(1 << 23)) for _ in range(3)]
        os.kill(cluster.status(1)["pid"], signal.SIGKILL)
        for handle in handles:
            with contextlib.suppress(NodeLost):
                handle.wait(10)
        assert group[0].hello().wait(10) == [0]
        late = Plain.create_group().launch(cluster, placement=NodePlacementStrategy([0]), name="late")
        with pytest.raises(NodeLost, match="local-1"):
            late.find_by_name("torn").wait(10)
