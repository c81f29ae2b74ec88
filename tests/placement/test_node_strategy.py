from __future__ import annotations

import pytest

from rlinf_async.errors import ConfigError
from rlinf_async.placement import NodePlacementStrategy, NodeRankError


def test_processes_are_placed_in_the_order_that_was_given(make_cluster):
    placements = NodePlacementStrategy([2, 0, 2]).get_placement(make_cluster(0, 0, 0))

    assert [p.rank for p in placements] == [0, 1, 2]
    assert [p.cluster_node_rank for p in placements] == [2, 0, 2]
    assert [p.placement_node_rank for p in placements] == [0, 1, 0]
    assert [p.local_rank for p in placements] == [0, 0, 1]
    assert [p.local_world_size for p in placements] == [2, 1, 2]


def test_a_node_without_accelerators_gives_none(make_cluster):
    (placement,) = NodePlacementStrategy([0]).get_placement(make_cluster(0))

    assert placement.accelerator_type == "NO_ACCEL"
    assert placement.local_accelerator_rank == -1
    assert placement.visible_accelerators == ()
    assert placement.global_accelerator_ids == ()
    assert placement.local_hardware_ranks == ()


@pytest.mark.parametrize("isolate", [True, False])
def test_a_process_sees_all_accelerators_of_its_node_and_owns_none(make_cluster, isolate):
    (placement,) = NodePlacementStrategy([1]).get_placement(make_cluster(2, ["4", "6"]), isolate)

    assert placement.visible_accelerators == ("4", "6")
    assert placement.global_accelerator_ids == (2, 3)
    assert placement.local_hardware_ranks == ()
    assert placement.local_accelerator_rank == 0
    assert placement.isolate_accelerator is isolate


def test_no_nodes_are_refused():
    with pytest.raises(ConfigError, match="The node_ranks list must not be empty"):
        NodePlacementStrategy([])


@pytest.mark.parametrize("node_ranks", ["01", [True], [0.0], [[0]], None, range(10**12)])
def test_nodes_are_whole_numbers_in_a_list(node_ranks):
    with pytest.raises(ConfigError, match="node_ranks must be a list of at most 65536 whole numbers, got"):
        NodePlacementStrategy(node_ranks)


@pytest.mark.parametrize("node_rank", [2, -1])
def test_a_node_that_is_not_there_is_an_index_error_that_names_what_there_is(make_cluster, node_rank):
    strategy = NodePlacementStrategy([0, node_rank])

    with pytest.raises(IndexError, match=f"Node rank {node_rank} is out of range: the cluster has nodes 0-1"):
        strategy.get_placement(make_cluster(0, 0))
    with pytest.raises(NodeRankError, match="the cluster has node 0 only"):
        strategy.get_placement(make_cluster(0))
    with pytest.raises(ConfigError, match="the cluster has no nodes"):
        strategy.get_placement(make_cluster())


@pytest.mark.parametrize(("group", "label"), [(None, "cluster"), ("cluster", "cluster"), (["node"], "node")])
def test_the_groups_of_all_nodes_may_be_named(make_cluster, group, label):
    (placement,) = NodePlacementStrategy([0], group).get_placement(make_cluster(0))

    assert placement.node_group_label == label


def test_an_unknown_node_group_is_refused(make_cluster):
    with pytest.raises(ConfigError, match=r"Node group not found: 'robot'.*not defined for this cluster"):
        NodePlacementStrategy([0], "robot").get_placement(make_cluster(0))
