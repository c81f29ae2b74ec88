"""Fixtures of the channel tests, made once per file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rlinf_async import Channel, Cluster, NodePlacementStrategy
from tests._support.channel_workers import User


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(num_nodes=2, local_nodes=2, log_to_driver=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def users(cluster: Cluster) -> Iterator[Any]:
    """Two on node 0, one on node 1."""
    group = User.create_group().launch(cluster, placement=NodePlacementStrategy([0, 0, 1]), name="users")
    yield group.wait_ready()
    group.close()


@pytest.fixture(params=[0, 1], ids=["near", "far"])
def channel(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Channel]:
    """On the driver's node, and on the other one."""
    with Channel.create(f"channel-{request.param}", node_rank=request.param) as channel:
        yield channel


@pytest.fixture
def one(cluster: Cluster) -> Iterator[Channel]:
    """A channel that holds one item per key."""
    with Channel.create("one", maxsize=1) as channel:
        yield channel
