from __future__ import annotations

import pytest

from rlinf_async.errors import ConfigError
from rlinf_async.placement import FlexiblePlacementStrategy


def test_processes_and_their_devices_stay_in_the_order_that_was_given_and_may_share(make_cluster):
    placements = FlexiblePlacementStrategy([[3], [1, 0], [1]]).get_placement(make_cluster(2, 2))

    assert [p.rank for p in placements] == [0, 1, 2]
    assert [p.global_accelerator_ids for p in placements] == [(3,), (1, 0), (1,)]
    assert [p.visible_accelerators for p in placements] == [("1",), ("1", "0"), ("1",)]
    assert [p.local_hardware_ranks for p in placements] == [(1,), (1, 0), (1,)]
    assert [p.local_accelerator_rank for p in placements] == [1, 1, 1]
    assert [(p.cluster_node_rank, p.placement_node_rank) for p in placements] == [(1, 0), (0, 1), (0, 1)]
    assert [(p.local_rank, p.local_world_size) for p in placements] == [(0, 1), (0, 2), (1, 2)]


def test_nodes_may_take_turns(make_cluster):
    placements = FlexiblePlacementStrategy([[2], [0], [3], [1]]).get_placement(make_cluster(2, 2))

    assert [(p.cluster_node_rank, p.local_rank) for p in placements] == [(1, 0), (0, 0), (1, 1), (0, 1)]
    assert [p.placement_node_rank for p in placements] == [0, 1, 0, 1]
    assert {p.local_world_size for p in placements} == {2}


def test_without_isolation_sharers_keep_their_own_first_device(make_cluster):
    placements = FlexiblePlacementStrategy([[1], [1], [2, 3]]).get_placement(make_cluster(4), False)

    assert [p.local_accelerator_rank for p in placements] == [1, 1, 2]
    assert {p.visible_accelerators for p in placements} == {("0", "1", "2", "3")}


def test_the_callers_lists_are_left_alone(make_cluster):
    asked = [[1, 0], [3, 2]]

    FlexiblePlacementStrategy(asked).get_placement(make_cluster(4))

    assert asked == [[1, 0], [3, 2]]


@pytest.mark.parametrize(
    ("lists", "text"),
    [
        ([], "The hardware_ranks_list must not be empty"),
        (3, "The hardware_ranks_list must not be empty.*, got 3"),
        ([1, 2], "hardware ranks of process 0 must be a list of at most 65536 whole numbers, got 1"),
        ([[0], [True]], r"hardware ranks of process 1 must be .* whole numbers, got \[True\]"),
        ([["0"]], r"hardware ranks of process 0 must be .* whole numbers, got \['0'\]"),
        ([[0], []], "hardware ranks of process 1 must not be empty"),
        ([[0, -1]], r"hardware ranks \[0, -1\] of process 0 must be non-negative"),
        ([[0], [1, 1]], r"\[1, 1\] of process 1 must be unique"),
    ],
)
def test_impossible_arguments_are_refused_at_once(lists, text):
    with pytest.raises(ConfigError, match=text):
        FlexiblePlacementStrategy(lists)


@pytest.mark.parametrize(
    ("lists", "text"),
    [
        ([[4]], "Hardware rank 4 is out of range: the cluster has 4"),
        ([[0], [1, 2]], "Rank 1 .* lie on node 0 'a' and node 1 'b'; .* must be on the same node"),
    ],
)
def test_what_the_cluster_cannot_give_is_refused(make_cluster, lists, text):
    with pytest.raises(ConfigError, match=text):
        FlexiblePlacementStrategy(lists).get_placement(make_cluster(2, 2))


def test_an_unknown_node_group_is_refused(make_cluster):
    with pytest.raises(ConfigError, match="not defined for this cluster"):
        FlexiblePlacementStrategy([[0]], "a800").get_placement(make_cluster(1))


def test_an_accelerator_of_a_cluster_without_any_is_refused(make_cluster):
    with pytest.raises(ConfigError, match="Flexible placement requires hardware resources, and the cluster"):
        FlexiblePlacementStrategy([[0]]).get_placement(make_cluster(0))
