"""Conformance suite of schemes, with the ends in workers of one node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rlinf_async import Cluster, NodePlacementStrategy
from tests.weights.contract.claims import APART
from tests.weights.contract.suite import Way, claims_apart, ways_of
from tests.weights.contract.workers import Rollout, Trainer

pytestmark = pytest.mark.shared_cluster

HERE = [kind for kind in APART if kind != "distributed"]
"""To a torch job all machines are alike: it is tried with both ends in one process, and over ssh."""


@pytest.fixture(scope="module")
def trainer() -> Iterator[Any]:
    """One that has met its receivers."""
    with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        rollout = Rollout.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="rollout")
        trainer = Trainer.create_group("127.0.0.1").launch(cluster, NodePlacementStrategy([0]), name="trainer")
        rollout.wait_ready()
        trainer.meet("rollout").wait(60)
        yield trainer


@pytest.mark.parametrize("way", ways_of(HERE), ids=str)
def test_contract(trainer: Any, way: Way) -> None:
    (kept,) = trainer.keep(way).wait(120)
    assert kept
    assert kept == claims_apart(way)
