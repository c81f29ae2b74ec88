"""Fixtures of the experience tests, made once per file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rlinf_async import Cluster, Experience, NodePlacementStrategy
from tests._support.experience_workers import Player


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(num_nodes=2, local_nodes=2, log_to_driver=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def players(cluster: Cluster) -> Iterator[Any]:
    """One on each node."""
    group = Player.create_group().launch(cluster, placement=NodePlacementStrategy([0, 1]), name="players")
    yield group.wait_ready()
    group.close()


@pytest.fixture(params=[0, 1], ids=["near", "far"])
def experience(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Experience]:
    """Groups of two, on the driver's node and on the other one."""
    experience = Experience.create(f"experience-{request.param}", group=2, max_staleness=1, node_rank=request.param)
    yield experience
    experience.close(discard=True)
