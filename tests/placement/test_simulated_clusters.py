"""Placement over clusters of one to a thousand nodes of mixed hardware: random requests."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from rlinf_async.configuration import ClusterConfig
from rlinf_async.errors import ConfigError
from rlinf_async.placement import (
    FlexiblePlacementStrategy,
    HybridComponentPlacement,
    NodePlacementStrategy,
    PackedPlacementStrategy,
)
from tests._support.simulated_clusters import Simulated, simulate

CHECKED = settings(deadline=None, derandomize=True, max_examples=40)


@st.composite
def clusters(draw: st.DrawFn) -> Simulated:
    """A few nodes in detail, or many of a kind; GPUs of two makers, NPUs, and nodes without any."""
    num_nodes = draw(st.one_of(st.integers(1, 6), st.sampled_from([40, 1000])))
    pattern = draw(
        st.lists(
            st.sampled_from([(0, "NO_ACCEL"), (1, "NV_GPU"), (8, "NV_GPU"), (4, "AMD_GPU"), (2, "NPU")]),
            min_size=1,
            max_size=5,
        )
    )
    return simulate([pattern[rank % len(pattern)] for rank in range(num_nodes)])


@st.composite
def grouped(draw: st.DrawFn) -> Simulated:
    """A cluster with disjoint groups of its nodes."""
    cluster = draw(clusters())
    count = draw(st.integers(1, 3))
    groups = [
        {"label": f"g{number}", "node_ranks": ranks, "ignore_hardware": draw(st.booleans())}
        for number in range(count)
        if (ranks := [node.node_rank for node in cluster.nodes if node.node_rank % count == number])
    ]
    config = ClusterConfig.from_dict_cfg({"num_nodes": len(cluster.nodes), "node_groups": groups})
    return Simulated(cluster.nodes, config.node_groups_for(cluster.nodes))


def check(placements, cluster):
    """What holds of every placement."""
    assert [p.rank for p in placements] == list(range(len(placements)))
    nodes = {node.node_rank: node for node in cluster.nodes}
    first, total = {}, 0
    for node in cluster.nodes:
        first[node.node_rank] = total
        total += node.num_accelerators
    workers_on = Counter(p.cluster_node_rank for p in placements)
    placed: Counter[int] = Counter()
    order = {rank: number for number, rank in enumerate(workers_on)}
    for p in placements:
        node = nodes[p.cluster_node_rank]
        assert p.local_rank == placed[p.cluster_node_rank]
        assert p.local_world_size == workers_on[p.cluster_node_rank]
        assert p.placement_node_rank == order[p.cluster_node_rank]
        positions = [node.accelerators.index(device) for device in p.visible_accelerators]
        assert p.global_accelerator_ids == tuple(first[node.node_rank] + position for position in positions)
        if p.local_hardware_ranks and p.hardware_type == "Accelerator":
            assert p.local_accelerator_rank == p.local_hardware_ranks[0]
            assert p.accelerator_type == node.accelerator_type
            assert max(p.local_hardware_ranks) < node.num_accelerators
            if p.isolate_accelerator:
                assert tuple(positions) == p.local_hardware_ranks
        placed[p.cluster_node_rank] += 1


def owned(placements):
    return Counter((p.cluster_node_rank, position) for p in placements for position in p.local_hardware_ranks)


@CHECKED
@given(grouped(), st.data())
def test_packing_places_every_rank_once_and_gives_no_device_twice(cluster, data):
    label = data.draw(st.sampled_from([group.label for group in cluster.node_groups]))
    per_process, stride = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    group = next(group for group in cluster.node_groups if group.label == label)
    blocks = group.hardware_resource_count // (per_process * stride)
    if not blocks:
        return
    strategy = PackedPlacementStrategy(0, blocks * per_process * stride - 1, per_process, stride, label)

    spans = any(
        len({group.get_node_by_hardware_rank(rank).node_rank for rank in ranks}) > 1
        for ranks in strategy.get_hardware_ranks()
    )
    if group.counted_hardware is None or spans:
        with pytest.raises(ConfigError, match=r"cannot spread across multiple nodes|requires hardware resources"):
            strategy.get_placement(cluster)
        return
    placements = strategy.get_placement(cluster, data.draw(st.booleans()))

    check(placements, cluster)
    assert len(placements) == blocks * stride == strategy.num_processes
    assert set(owned(placements).values()) == {1}
    assert all(len(p.local_hardware_ranks) == per_process for p in placements)
    assert {p.cluster_node_rank for p in placements} <= set(group.node_ranks)
    assert strategy.get_placement(Simulated(cluster.nodes[::-1], cluster.node_groups)) == strategy.get_placement(
        cluster
    )


@CHECKED
@given(clusters(), st.data())
def test_listed_hardware_goes_to_the_rank_that_lists_it(cluster, data):
    total = sum(node.num_accelerators for node in cluster.nodes)
    if not total:
        return
    asked = data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=20))

    placements = FlexiblePlacementStrategy([[rank] for rank in asked]).get_placement(cluster)

    check(placements, cluster)
    assert [p.global_accelerator_ids for p in placements] == [(rank,) for rank in asked]


@CHECKED
@given(clusters(), st.data())
def test_listed_nodes_get_the_ranks_that_list_them(cluster, data):
    asked = data.draw(st.lists(st.integers(0, len(cluster.nodes) - 1), min_size=1, max_size=20))

    placements = NodePlacementStrategy(asked).get_placement(cluster)

    check(placements, cluster)
    assert [p.cluster_node_rank for p in placements] == asked
    assert not owned(placements)


@st.composite
def rules(draw: st.DrawFn, limit: int) -> tuple[str, bool]:
    """A rule for at most ``limit`` resources, and whether it lets processes share."""
    start = draw(st.integers(0, limit - 1))
    count = draw(st.integers(1, min(4, limit - start)))
    factor = draw(st.sampled_from([None, 1, 2, 3]))
    span = f"{start}-{start + count - 1}"
    return (span, False) if factor is None else (f"{span}:0-{count * factor - 1}", factor > 1)


@CHECKED
@given(grouped(), st.data())
def test_components_are_placed_alike_whatever_the_order_of_their_entries(cluster, data):
    section, shares = {}, {}
    for name in data.draw(st.lists(st.sampled_from(["actor", "env", "rollout", "agent"]), min_size=1, unique=True)):
        group = data.draw(st.sampled_from(cluster.node_groups))
        if not group.hardware_resource_count:
            continue
        rule, shares[name] = data.draw(rules(group.hardware_resource_count))
        section[name] = {"placement": rule, "node_group": group.label}
    shuffled = dict(data.draw(st.permutations(sorted(section.items()))))

    placement = HybridComponentPlacement({"cluster": {"component_placement": section}}, cluster)
    other = HybridComponentPlacement({"cluster": {"component_placement": shuffled}}, cluster)

    assert placement.components == list(section)
    for name in section:
        placements = placement.get_strategy(name).get_placement(cluster)
        check(placements, cluster)
        assert len(placements) == placement.get_world_size(name)
        assert placements == other.get_strategy(name).get_placement(cluster)
        if not shares[name]:
            assert set(owned(placements).values()) <= {1}


@pytest.mark.parametrize("num_nodes", [1, 10, 100, 1000])
def test_ranks_of_a_large_mixed_cluster_are_planned_in_a_moment(num_nodes):
    cluster = simulate([[(8, "NV_GPU"), (4, "AMD_GPU"), (0, "NO_ACCEL")][rank % 3] for rank in range(num_nodes)])
    began = time.perf_counter()

    placement = HybridComponentPlacement(
        {
            "cluster": {
                "component_placement": {
                    "actor": "all",
                    "env": {"node_group": "node", "placement": f"all:0-{num_nodes * 10 - 1}"},
                }
            }
        },
        cluster,
    )
    for name in placement.components:
        assert len(placement.get_strategy(name).get_placement(cluster)) == placement.get_world_size(name)

    assert placement.get_world_size("env") == num_nodes * 10
    assert time.perf_counter() - began < 5
