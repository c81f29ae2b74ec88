from __future__ import annotations

import time

import pytest
from hypothesis import assume, given, settings, strategies as st

from rlinf_async.errors import ConfigError
from rlinf_async.placement import NodePlacementStrategy, PackedPlacementStrategy, default_strategy


def devices(placements):
    return [list(p.global_accelerator_ids) for p in placements]


def test_one_process_for_each_accelerator_of_the_range(make_cluster):
    first, second, third = PackedPlacementStrategy(1, 3).get_placement(make_cluster(2, 4))

    assert (first.rank, first.cluster_node_rank, first.placement_node_rank) == (0, 0, 0)
    assert (first.local_rank, first.local_world_size) == (0, 1)
    assert (first.local_accelerator_rank, first.local_hardware_ranks) == (1, (1,))
    assert (first.visible_accelerators, first.global_accelerator_ids) == (("1",), (1,))
    assert (first.accelerator_type, first.node_group_label) == ("NV_GPU", "cluster")
    assert (second.rank, second.cluster_node_rank, second.placement_node_rank) == (1, 1, 1)
    assert (second.local_rank, second.local_world_size) == (0, 2)
    assert (third.local_rank, third.local_world_size) == (1, 2)
    assert (third.node_local_rank, third.node_local_world_size) == (1, 2)
    assert (third.visible_accelerators, third.global_accelerator_ids) == (("1",), (3,))


def test_placement_node_rank_counts_only_the_nodes_that_are_used(make_cluster):
    (placement,) = PackedPlacementStrategy(2, 2).get_placement(make_cluster(2, 2))

    assert (placement.cluster_node_rank, placement.placement_node_rank) == (1, 0)


def test_nodes_without_accelerators_are_passed_over(make_cluster):
    placements = PackedPlacementStrategy(0, 2).get_placement(make_cluster(0, 2, 0, 1, 0))

    assert [(p.cluster_node_rank, p.visible_accelerators) for p in placements] == [
        (1, ("0",)),
        (1, ("1",)),
        (3, ("0",)),
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"end_hardware_rank": 3, "num_hardware_per_process": 2}, [[0, 1], [2, 3]]),
        ({"end_hardware_rank": 3, "num_hardware_per_process": 4}, [[0, 1, 2, 3]]),
        (
            {"end_hardware_rank": 7, "num_hardware_per_process": 2, "stride": 2},
            [[0, 2], [1, 3], [4, 6], [5, 7]],
        ),
        ({"end_hardware_rank": 3, "stride": 4}, [[0], [1], [2], [3]]),
    ],
)
def test_strided_processes_interlock(make_cluster, arguments, expected):
    strategy = PackedPlacementStrategy(start_hardware_rank=0, **arguments)

    assert devices(strategy.get_placement(make_cluster(8))) == expected


def test_device_ids_stay_as_the_node_lists_them(make_cluster):
    cluster = make_cluster(["5", "7"], ["GPU-aa", "MIG-bb"])

    placements = PackedPlacementStrategy(0, 3).get_placement(cluster)

    assert [p.visible_accelerators for p in placements] == [("5",), ("7",), ("GPU-aa",), ("MIG-bb",)]
    assert [p.local_accelerator_rank for p in placements] == [0, 1, 0, 1]


def test_without_isolation_all_devices_are_visible_and_the_own_one_is_still_known(make_cluster):
    placements = PackedPlacementStrategy(3, 5).get_placement(make_cluster(2, 4), isolate_accelerator=False)

    assert [p.visible_accelerators for p in placements] == [("0", "1", "2", "3")] * 3
    assert devices(placements) == [[2, 3, 4, 5]] * 3
    assert [p.local_accelerator_rank for p in placements] == [1, 2, 3]
    assert [p.local_hardware_ranks for p in placements] == [(1,), (2,), (3,)]
    assert not any(p.isolate_accelerator for p in placements)


def test_a_process_never_spills_over_the_end_of_its_node(make_cluster):
    # Rank 1 starts at the last accelerator of node 0.
    with pytest.raises(ConfigError, match="cannot spread across multiple nodes") as caught:
        PackedPlacementStrategy(0, 5, num_hardware_per_process=2).get_placement(make_cluster(3, 3))

    assert "Rank 1 would get hardware ranks [2, 3]" in str(caught.value)
    assert "node 0 'a' and node 1 'b'" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((-1, 3), "The start hardware rank -1 must be non-negative"),
        ((3, 2), "The end hardware rank 2 must be greater than or equal to the start hardware rank 3"),
        (("0", 3), "start_hardware_rank must be a whole number, got '0'"),
        ((0, True), "end_hardware_rank must be a whole number, got True"),
        ((0, 3, 2.0), "num_hardware_per_process must be a whole number, got 2.0"),
        ((0, 3, 0), "must be at least 1"),
        ((0, 3, 1, 0), "must be at least 1"),
        ((0, 3, 3), r"number of hardware 4 \(ranks 0-3\) must be divisible by .* \(3\)"),
        ((0, 5, 2, 2), r"must be divisible by num_hardware_per_process \* stride \(4\)"),
    ],
)
def test_impossible_arguments_are_refused_at_once(arguments, text):
    with pytest.raises(ConfigError, match=text):
        PackedPlacementStrategy(*arguments)


def test_errors_are_those_that_rlinf_raises(make_cluster):
    with pytest.raises(AssertionError):
        PackedPlacementStrategy(0, 8).get_placement(make_cluster(8))


def test_a_range_beyond_the_cluster_names_what_there_is(make_cluster):
    with pytest.raises(ConfigError, match="exceed available resources") as caught:
        PackedPlacementStrategy(0, 4).get_placement(make_cluster(2, 2))

    assert "Hardware ranks 0-4" in str(caught.value)
    assert "4 (node 0 'a': 2, node 1 'b': 2)" in str(caught.value)


def test_a_large_cluster_is_counted_and_not_listed(make_cluster):
    with pytest.raises(ConfigError, match="and 92 more nodes"):
        PackedPlacementStrategy(0, 800).get_placement(make_cluster(*[8] * 100))


def test_a_cluster_without_accelerators_points_to_node_placement(make_cluster):
    with pytest.raises(ConfigError, match="requires hardware resources") as caught:
        PackedPlacementStrategy(0, 0).get_placement(make_cluster(0, 0))

    assert "nodes 0-1" in str(caught.value)
    assert "NodePlacementStrategy" in str(caught.value)


@pytest.mark.parametrize("group", ["a800", "cluster,a800", ["cluster", "a800"]])
def test_an_unknown_node_group_is_refused(make_cluster, group):
    strategy = PackedPlacementStrategy(0, 0, node_group=group)

    with pytest.raises(ConfigError, match="Node groups are not defined for this cluster"):
        strategy.get_placement(make_cluster(1))


@pytest.mark.parametrize("group", [5, [5]])
def test_a_node_group_is_named_by_its_label(make_cluster, group):
    with pytest.raises(ConfigError, match="a node group is named by its label, several by a list of labels, got"):
        PackedPlacementStrategy(0, 0, node_group=group).get_placement(make_cluster(1))


@pytest.mark.parametrize("group", [[], ["cluster", "cluster"], "cluster, cluster"])
def test_every_node_group_is_named_once(make_cluster, group):
    with pytest.raises(ConfigError, match="overlap or are empty: name each group once"):
        PackedPlacementStrategy(0, 0, node_group=group).get_placement(make_cluster(1))


def test_a_group_without_hardware_is_refused(make_cluster):
    with pytest.raises(ConfigError, match="requires hardware resources, and the cluster has none in node 0 only"):
        PackedPlacementStrategy(0, 0, node_group="node").get_placement(make_cluster(1))


@pytest.mark.parametrize("group", [None, "cluster", ["cluster"]])
def test_the_group_of_all_nodes_may_be_named(make_cluster, group):
    (placement,) = PackedPlacementStrategy(0, 0, node_group=group).get_placement(make_cluster(1))

    assert placement.node_group_label == "cluster"


def test_the_default_is_every_accelerator_else_node_zero(make_cluster):
    assert default_strategy(make_cluster(0, 2, 1)) == PackedPlacementStrategy(0, 2)
    assert default_strategy(make_cluster(0, 0)) == NodePlacementStrategy([0])


@settings(deadline=None, derandomize=True)
@given(
    per_node=st.integers(1, 8),
    num_nodes=st.integers(1, 4),
    start=st.integers(0, 8),
    blocks=st.integers(1, 8),
    per_process=st.integers(1, 4),
    stride=st.integers(1, 4),
    isolate=st.booleans(),
)
def test_packing_takes_the_lowest_free_accelerator_each_once(
    make_cluster, per_node, num_nodes, start, blocks, per_process, stride, isolate
):
    count = blocks * per_process * stride
    assume(start + count <= per_node * num_nodes)
    free = set(range(start, start + count))
    expected = []
    while free:
        expected.append([min(free) + i * stride for i in range(per_process)])
        free -= set(expected[-1])
    cluster = make_cluster(*[per_node] * num_nodes)
    strategy = PackedPlacementStrategy(start, start + count - 1, per_process, stride)

    if any(ranks[0] // per_node != ranks[-1] // per_node for ranks in expected):
        with pytest.raises(ConfigError, match="cannot spread"):
            strategy.get_placement(cluster, isolate)
        return
    placements = strategy.get_placement(cluster, isolate)

    assert [p.rank for p in placements] == list(range(len(expected)))
    own = [[p.cluster_node_rank * per_node + i for i in p.local_hardware_ranks] for p in placements]
    assert own == expected
    if isolate:
        assert devices(placements) == expected
    assert placements == strategy.get_placement(type(cluster)(cluster.nodes[::-1]), isolate)
    for node_rank in {p.cluster_node_rank for p in placements}:
        here = [p for p in placements if p.cluster_node_rank == node_rank]
        assert [p.local_rank for p in here] == list(range(len(here)))
        assert {p.local_world_size for p in here} == {len(here)}
        assert {p.local_accelerator_rank == p.local_hardware_ranks[0] for p in here} == {True}
    node_ranks = [p.placement_node_rank for p in placements]
    assert node_ranks == sorted(node_ranks)
    assert set(node_ranks) == set(range(len({p.cluster_node_rank for p in placements})))


@pytest.mark.parametrize("isolate", [True, False])
def test_ten_thousand_ranks_are_planned_within_a_second(make_cluster, isolate):
    cluster = make_cluster(*[8] * 1250)
    began = time.process_time()

    placements = PackedPlacementStrategy(0, 9_999).get_placement(cluster, isolate)

    assert len(placements) == 10_000
    assert time.process_time() - began < 1
