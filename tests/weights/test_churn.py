"""Followers that come and go at random on two nodes, while a trainer publishes without a pause."""

from __future__ import annotations

import os

import pytest

from rlinf_async import Cluster, NodePlacementStrategy
from tests.weights.publishing_workers import Restless

SECONDS = float(os.environ.get("RLINF_STRESS_SECONDS", "2.5"))


@pytest.mark.parametrize("apply", ["copy", "map"])
def test_no_reader_sees_two_versions_and_nobody_is_left_without_one_whoever_comes_and_goes(apply: str) -> None:
    with Cluster(num_nodes=2, local_nodes=2, log_to_driver=False) as cluster:
        trainer = Restless.create_group().launch(cluster, NodePlacementStrategy([0]), name="trainer")
        others = Restless.create_group().launch(cluster, NodePlacementStrategy([0, 1, 1]), name="restless")
        sending = trainer.wait_ready().send_on(1, apply=apply)
        coming = others.wait_ready().come_and_go(SECONDS, 1, apply=apply)
        for times, errors in coming.wait(SECONDS + 60):
            assert errors == []
            assert times > 1
        trainer.stop()
        ((versions, errors),) = sending.wait(60)
        assert errors == []
        assert versions > 10
