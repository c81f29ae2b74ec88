"""Ranks whose node is lost are started again on another one: calls, messages, weights, process groups, devices."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rlinf_async import Cluster, NodeLost, NodePlacementStrategy, PackedPlacementStrategy, Restart
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


def test_an_idempotent_call_outlives_the_node_that_it_runs_on() -> None:
    with nodes(2) as cluster, launched(cluster, [1, 1]) as group:
        running = group.wait_and_echo(7, 2.0)
        time.sleep(0.3)
        kill_node(cluster, 1)
        assert running.wait() == [7, 7]
        assert [restarts for _, restarts, _ in group.who().wait()] == [1, 1]


def test_messages_wait_for_a_rank_of_a_lost_node_and_fail_where_none_comes_back() -> None:
    with (
        nodes(3) as cluster,
        launched(cluster, [0], name="near") as near,
        launched(cluster, [1], name="far") as far,
        launched(cluster, [1], name="lonely", restart=None),
    ):
        listening, hopeless = near.take("far", 0), near.take("lonely", 0)
        sending = far.give("before", "near", 0)
        assert listening.wait() == ["before"]
        sending.wait()
        listening = near.take("far", 0)
        kill_node(cluster, 1)
        with pytest.raises(NodeLost, match="local-1") as lost:
            hopeless.wait()
        assert not lost.value.returns
        far.give("after", "near", 0).wait()
        assert listening.wait() == ["after"]
        giving, taking = near.give("back", "far", 0), far.take("near", 0)
        assert taking.wait() == ["back"]
        giving.wait()


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


def test_a_process_group_is_made_anew_though_the_store_was_on_the_lost_node() -> None:
    with nodes(2) as cluster, launched(cluster, [1, 0, 0], cls=Together) as group:
        assert group.total().wait() == [6.0] * 3
        lose(cluster, 1, group, 0)
        assert group.total().wait() == [6.0] * 3
        assert group.told().wait() == [[Restart((1, 0, 0), (0,), 1)]] * 3


def test_ranks_with_devices_go_to_a_spare_node_and_are_lost_without_one() -> None:
    with nodes(3, fake_gpus=2) as cluster:
        packed = PackedPlacementStrategy(0, 3)
        with Mortal.create_group().launch(cluster, packed, name="gpus", restart="rank").wait_ready() as group:
            assert group.devices().wait() == [(0, "0"), (0, "1"), (1, "0"), (1, "1")]
            lose(cluster, 1, group, 2)
            assert group.devices().wait() == [(0, "0"), (0, "1"), (2, "0"), (2, "1")]
            lose(cluster, 2, group, 2)
            with pytest.raises(NodeLost, match=r"no other node has 2 x .* that no rank uses \(fix: add a spare node"):
                group[2].devices().wait()
