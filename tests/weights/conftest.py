"""Fixtures of the tests of weights between workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from rlinf_async import Cluster, NodePlacementStrategy, Worker
from tests.weights import children
from tests.weights.weight_workers import Launch

# torch asks the name server for the name of each address that its stores connect to; a lost answer takes five seconds.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


@pytest.fixture(scope="session")
def fork_server() -> Iterator[None]:
    """For tests that have children; it is no leak of the first of them, because it is there before its leak check."""
    with children.fork_server():
        yield


@pytest.fixture
def launch(cluster: Cluster) -> Iterator[Launch]:
    """Launches groups on the cluster of the file, and closes them."""
    groups: list[Any] = []

    def launch(kind: type[Worker], name: str, *nodes: int) -> Any:
        group = kind.create_group().launch(cluster, name=name, placement=NodePlacementStrategy(list(nodes)))
        groups.append(group)
        return group.wait_ready()

    yield launch
    for group in groups:
        group.close()
