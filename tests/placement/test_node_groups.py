"""Ranks counted in node groups: one, several in a row, robots, nodes."""

from __future__ import annotations

import pytest

from rlinf_async.errors import ConfigError
from rlinf_async.placement import (
    FlexiblePlacementStrategy,
    HybridComponentPlacement,
    MultiNodeGroupResolver,
    NodePlacementStrategy,
    NodeRankError,
    PackedPlacementStrategy,
)


def where(placements):
    return [(p.cluster_node_rank, p.local_hardware_ranks) for p in placements]


def test_hardware_is_counted_within_the_group(make_grouped):
    cluster = make_grouped([2, 4, 2], big="1-2")

    placements = PackedPlacementStrategy(3, 4, node_group="big").get_placement(cluster)

    assert where(placements) == [(1, (3,)), (2, (0,))]
    assert [p.global_accelerator_ids for p in placements] == [(5,), (6,)]
    assert {p.node_group_label for p in placements} == {"big"}
    assert {p.hardware_type for p in placements} == {"Accelerator"}


@pytest.mark.parametrize("groups", [["b", "a"], "b,a", ("b", "a")])
def test_several_groups_are_counted_in_a_row_in_the_order_of_their_names(make_grouped, groups):
    cluster = make_grouped([2, 2], a=0, b=1)

    placements = PackedPlacementStrategy(0, 3, node_group=groups).get_placement(cluster)

    assert where(placements) == [(1, (0,)), (1, (1,)), (0, (0,)), (0, (1,))]
    assert [p.node_group_label for p in placements] == ["b", "b", "a", "a"]
    assert [p.placement_node_rank for p in placements] == [0, 0, 1, 1]
    assert [p.local_rank for p in placements] == [0, 1, 0, 1]


def test_a_process_never_spans_two_groups(make_grouped):
    cluster = make_grouped([3, 3], a=0, b=1)

    with pytest.raises(ConfigError, match=r"Rank 1 would get hardware ranks .*cannot spread across multiple nodes"):
        PackedPlacementStrategy(0, 5, 2, node_group=["a", "b"]).get_placement(cluster)


def test_a_process_never_mixes_kinds_of_hardware(make_grouped):
    cluster = make_grouped([1], gpu=0, arm=[0])

    with pytest.raises(ConfigError, match=r"of the types Accelerator and Arm; .* must be of the same type"):
        FlexiblePlacementStrategy([[0, 1]], ["gpu", "arm"]).get_placement(cluster)
    placements = FlexiblePlacementStrategy([[0], [1]], ["gpu", "arm"]).get_placement(cluster)
    assert [p.hardware_type for p in placements] == ["Accelerator", "Arm"]


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        (PackedPlacementStrategy(0, 1, node_group="a,both"), "'a' and 'both' overlap: node 0 'a' is in both"),
        (FlexiblePlacementStrategy([[0]], ["cluster", "b"]), "'cluster' and 'b' overlap"),
        (NodePlacementStrategy([0], ["node", "a"]), "'node' and 'a' overlap"),
        (
            PackedPlacementStrategy(0, 0, node_group="c"),
            "Node group not found: 'c'; this cluster has 'cluster'",
        ),
        (PackedPlacementStrategy(0, 0, node_group="boht"), r"not found: 'boht' \(did you mean 'both'\?\)"),
        (PackedPlacementStrategy(0, 2, node_group="a"), "exceed available resources: node group 'a' has 2"),
        (FlexiblePlacementStrategy([[2]], "b"), "Hardware rank 2 is out of range: node group 'b' has 2 .node 1 'b': 2"),
    ],
)
def test_groups_that_overlap_or_are_too_small_are_refused(make_grouped, strategy, text):
    with pytest.raises(ConfigError, match=text):
        strategy.get_placement(make_grouped([2, 2], a=0, b=1, both="0-1"))


def test_robots_are_counted_and_their_workers_see_every_accelerator(make_grouped):
    cluster = make_grouped([2, 4, 0], arm=[1, 2])

    first, second = FlexiblePlacementStrategy([[0], [1]], "arm").get_placement(cluster)

    assert (first.cluster_node_rank, first.local_hardware_ranks, first.hardware_type) == (1, (0,), "Arm")
    assert (first.visible_accelerators, first.local_accelerator_rank) == (("0", "1", "2", "3"), 0)
    assert first.global_accelerator_ids == (2, 3, 4, 5)
    assert (second.cluster_node_rank, second.visible_accelerators, second.local_accelerator_rank) == (2, (), -1)


def test_nodes_are_counted_within_the_group(make_grouped):
    cluster = make_grouped([0, 2, 0, 2], cpu="0,2", gpu="1,3")

    placements = NodePlacementStrategy([1, 0, 2], ["gpu", "cpu"]).get_placement(cluster)

    assert [(p.cluster_node_rank, p.node_group_label) for p in placements] == [(3, "gpu"), (1, "gpu"), (0, "cpu")]
    with pytest.raises(NodeRankError, match=r"Node rank 2 is out of range: node group 'gpu' has nodes 1,3 \(counted"):
        NodePlacementStrategy([2], "gpu").get_placement(cluster)


def test_the_ranks_of_several_groups_are_asked_one_by_one(make_grouped):
    groups = {group.label: group for group in make_grouped([1, 2], a=0, b=1).node_groups}
    resolver = MultiNodeGroupResolver([groups["b"], groups["a"]])

    assert (resolver.hardware_resource_count, resolver.hardware_types) == (3, ["Accelerator", "Accelerator"])
    assert [resolver.get_node_by_hardware_rank(rank).node_rank for rank in range(3)] == [1, 1, 0]
    assert [resolver.get_local_hardware_rank(rank) for rank in range(3)] == [0, 1, 0]
    assert [resolver.get_node_group_label(rank) for rank in range(3)] == ["b", "b", "a"]
    assert resolver.get_node_group(2) is groups["a"]
    assert resolver.get_hardware_type_for_rank(0) == "Accelerator"
    mixed = MultiNodeGroupResolver([groups["b"], groups["node"]])
    assert (mixed.hardware_types, mixed.get_hardware_type_for_rank(3)) == (None, None)
    assert mixed.get_local_hardware_rank(2) == -1
    with pytest.raises(ConfigError, match="no node group is named"):
        MultiNodeGroupResolver([])


def place(rules, cluster):
    return HybridComponentPlacement({"cluster": {"component_placement": rules}}, cluster)


@pytest.mark.parametrize("groups", [["a", "b"], "a,b", "a, b"])
def test_a_rule_names_its_groups_as_a_list_or_with_commas(make_grouped, groups):
    cluster = make_grouped([2, 0, 2], a=0, b=2)

    placement = place({"actor": {"node_group": groups, "placement": "0-3:0-1"}}, cluster)

    assert where(placement.get_strategy("actor").get_placement(cluster)) == [(0, (0, 1)), (2, (0, 1))]
    assert placement.get_hardware_ranks("actor") == [0, 1, 2, 3]


def test_a_rule_counts_nodes_where_one_of_its_groups_has_no_hardware(make_grouped):
    cluster = make_grouped([2, 0, 2], a=0, cpu={"node_ranks": "1-2", "ignore_hardware": True})

    placement = place(
        {
            "agent": {"node_group": ["cpu", "a"], "placement": "0-2:0-5"},
            "judge": {"node_group": "node", "placement": "all"},
            "robot": {"node_group": "cpu", "placement": [0, "1"]},
        },
        cluster,
    )

    assert placement.get_strategy("agent") == NodePlacementStrategy([0, 0, 1, 1, 2, 2], ["cpu", "a"])
    nodes = [p.cluster_node_rank for p in placement.get_strategy("agent").get_placement(cluster)]
    assert nodes == [1, 1, 2, 2, 0, 0]
    assert placement.get_world_size("judge") == 3
    assert placement.get_hardware_ranks("robot") == [0, 1]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"node_group": "c", "placement": 0}, "component 'x': Node group not found: 'c'"),
        ({"node_group": "a,b", "placement": 4}, "component 'x' asks for accelerator 4, node groups 'a', 'b' have 4"),
        ({"node_group": "arm", "placement": "0-1"}, "component 'x' asks for Arms 0-1, node group 'arm' has 1"),
        ({"node_group": "a,arm", "placement": "0-5"}, "asks for hardware ranks 0-5, node groups 'a', 'arm' have 3"),
        ({"node_group": "node", "placement": 9}, "component 'x' asks for node 9, the cluster has nodes 0-1"),
        ({"node_group": "a"}, r"component_placement.x: Missing fields \['placement'\] detected in component 'x'"),
        ({"node_grup": "a", "placement": 0}, r"detected in component 'x' \(did you mean 'node_group'\?\)"),
        ({"node_group": 3, "placement": 0}, "node_group must be a label, labels with commas between, or a list"),
        ({"node_group": [], "placement": 0}, "node_group must be a label"),
        ({"node_group": "a", "placement": {}}, "component 'x': expected a range such as 0-3 or 0-1:0-3, got"),
    ],
)
def test_a_bad_rule_names_the_component_and_the_groups(make_grouped, rule, text):
    with pytest.raises(AssertionError, match=text):
        place({"x": rule}, make_grouped([2, 2], a=0, b=1, arm=[0]))


def test_a_rule_of_a_file_is_named_with_its_line(make_grouped, tmp_path):
    from rlinf_async.configuration import load_document

    path = tmp_path / "job.yaml"
    path.write_text("cluster:\n  num_nodes: 1\n  component_placement:\n    actor: 0\n    env: 0-3:4-7\n")

    with pytest.raises(ConfigError, match=r"job.yaml:5: component 'env': Process ranks must be in ascending order"):
        HybridComponentPlacement(load_document(path), make_grouped([8]))
