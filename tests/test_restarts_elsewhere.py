"""Ranks whose node is lost are started again on another one: calls, messages, weights, process groups, devices."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rlinf_async import Cluster, NodeLost, NodePlacementStrategy, Restart
from rlinf_async._cluster import supervision
from tests._support.mortal_workers import Mortal, Pupil, Teacher, Together


@pytest.fixture(autouse=True)
def _pause(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nodes of one machine that are killed leave nothing that could go on.
    monkeypatch.setattr(supervision, "_NODE_END_S", 0.3)


@contextmanager
def nodes(count: int, **options: Any) -> Iterator[Cluster]:
    with Cluster(local_nodes=count, log_to_driver=False, **options) as cluster:
        yield cluster


def launched(
    cluster: Cluster, placement: list[int], *, cls: Any = Mortal, name: str = "mortals", **options: Any
) -> Any:
    options = {"restart": "rank", "env": {"MINE": "kept"}, **options}
    return cls.create_group().launch(cluster, NodePlacementStrategy(placement), name=name, **options).wait_ready()


def kill_node(cluster: Cluster, node: int) -> None:
    os.kill(cluster.status(node)["pid"], signal.SIGKILL)


def lose(cluster: Cluster, node: int, group: Any, rank: int) -> None:
    """Kill a node, and wait for the loss of a rank: a call that is made later could wait for its return instead."""
    running = group[rank].sleep(600)
    kill_node(cluster, node)
    with pytest.raises(NodeLost):
        running.wait()


def test_calls_fail_with_the_node_unless_they_are_made_again_and_later_ones_wait() -> None:
    with nodes(3) as cluster, launched(cluster, [0, 1, 1]) as group:
        before = group.facts().wait()
        running = group[1:].sleep(600)
        kill_node(cluster, 1)
        with pytest.raises(NodeLost, match=r"rank 1 of group 'mortals' on local-1 .*is lost") as lost:
            running.wait()
        assert lost.value.returns
        handles = [group.note(number) for number in range(20)]
        assert handles[-1].wait() == [list(range(20))] * 3
        after = group.facts().wait()
        # One to node 2, where no rank was; then there are as many here as there.
        assert [facts["node"] for facts in after] == [0, 2, 0]
        assert [facts["address"] for facts in after] == [facts["address"] for facts in before]
        assert [restarts for _, restarts, _ in group.who().wait()] == [0, 1, 1]


@pytest.mark.slow
def test_a_follower_of_a_lost_node_comes_back_with_the_current_weights() -> None:
    with (
        nodes(2) as cluster,
        launched(cluster, [0], cls=Teacher, name="teacher", env={}) as teacher,
        launched(cluster, [0, 1], cls=Pupil, name="pupils") as pupils,
    ):
        joining = pupils.join("teacher")
        teacher.begin("pupils").wait()
        teacher.step(1.0).wait()
        joining.wait()
        teacher.delivered().wait()
        lose(cluster, 1, pupils, 1)
        teacher.step(2.0).wait()
        pupils[1].join("teacher").wait()
        assert teacher.delivered().wait() == [["pupils:0", "pupils:1"]]
        assert pupils.shown().wait() == [(3, 2.0), (3, 2.0)]  # the first was sent by entering
        teacher.end().wait()


@pytest.mark.slow
def test_a_process_group_is_made_anew_though_the_store_was_on_the_lost_node() -> None:
    with nodes(2) as cluster, launched(cluster, [1, 0, 0], cls=Together) as group:
        assert group.total().wait() == [6.0] * 3
        lose(cluster, 1, group, 0)
        assert group.total().wait() == [6.0] * 3
        assert group.told().wait() == [[Restart((1, 0, 0), (0,), 1)]] * 3
