from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings, strategies as st
from omegaconf import OmegaConf

from rlinf_async.configuration import ClusterConfig
from rlinf_async.errors import ConfigError
from rlinf_async.placement import (
    FlexiblePlacementStrategy,
    HybridComponentPlacement,
    NodePlacementStrategy,
    PlacementMode,
)


def configure(rules):
    return {"cluster": {"component_placement": rules}}


def place(rules, cluster):
    return HybridComponentPlacement(configure(rules), cluster)


def test_ranges_name_accelerators_where_there_are_some(make_cluster):
    cluster = make_cluster(4, 4)

    placement = place({"actor": "0-7", "env": "0-3:0-7", "rollout": "4-7:0-1"}, cluster)

    assert placement.components == ["actor", "env", "rollout"]
    assert placement.placement_mode is PlacementMode.HYBRID
    assert [placement.get_world_size(name) for name in placement.components] == [8, 8, 2]
    assert placement.get_hardware_ranks("rollout") == [4, 5, 6, 7]
    assert placement.get_strategy("rollout") == FlexiblePlacementStrategy([[4, 5], [6, 7]])
    ids = [p.global_accelerator_ids for p in placement.get_strategy("env").get_placement(cluster)]
    assert ids == [(0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,)]


@pytest.mark.parametrize(
    ("rule", "node_ranks", "resources"),
    [
        (0, [0], [0]),
        ("0:0-3", [0, 0, 0, 0], [0]),
        ("0-1:0-3", [0, 0, 1, 1], [0, 1]),
        ("all", [0, 1], [0, 1]),
    ],
)
def test_ranges_name_nodes_where_there_are_no_accelerators(make_cluster, rule, node_ranks, resources):
    placement = place({"rollout": rule}, make_cluster(0, 0))

    assert placement.get_strategy("rollout") == NodePlacementStrategy(node_ranks)
    assert placement.get_world_size("rollout") == len(node_ranks)
    assert placement.get_hardware_ranks("rollout") == resources


def test_components_under_one_rule_share_its_strategy(make_cluster):
    placement = place({"actor, inference": "0-1", "env": "0-1"}, make_cluster(2))

    assert placement.components == ["actor", "inference", "env"]
    assert placement.get_strategy("actor") == placement.get_strategy("inference")
    assert [placement.get_strategy(name).component for name in ("actor", "inference")] == ["actor", "inference"]


@pytest.mark.parametrize(
    "config",
    [
        {"cluster": {"component_placement": {"actor": [0, 1, "2-3"]}}},
        OmegaConf.create({"cluster": {"component_placement": {"actor": [0, 1, "2-3"]}}}),
        OmegaConf.create("last: 3\ncluster: {component_placement: {actor: '0-${last}'}}"),
        OmegaConf.create("cluster: {num_nodes: 1, component_placement: {actor: all}}"),
        SimpleNamespace(cluster=SimpleNamespace(component_placement={"actor": "0-3"})),
    ],
)
def test_a_configuration_may_be_a_dict_a_dict_config_or_an_object(make_cluster, config):
    if OmegaConf.is_config(config):
        OmegaConf.set_struct(config, True)

    placement = HybridComponentPlacement(config, make_cluster(4))

    assert placement.get_strategy("actor") == FlexiblePlacementStrategy([[0], [1], [2], [3]])


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (None, r"needs a configuration, got None: give the path of its file, or .* give cluster\.config"),
        ("none.yaml", "none.yaml: cannot read the configuration"),
        (ClusterConfig(), "component_placement must be provided .*'cluster' has no section"),
        ({}, "cluster must be provided for component placement: the configuration has no section 'cluster'"),
        ({"cluster": {"num_nodes": 1}}, "component_placement must be provided .*'cluster' has no section"),
        (OmegaConf.create({"cluster": {}}), "component_placement must be provided"),
        (SimpleNamespace(), "cluster must be provided"),
        (configure("0-7"), "component_placement must map components to ranges, such as 'actor: 0-3', got '0-7'"),
    ],
)
def test_a_missing_section_is_named(make_cluster, config, text):
    with pytest.raises(ConfigError, match=text):
        HybridComponentPlacement(config, make_cluster(1))


@pytest.mark.parametrize(
    "text", ["cluster:\n  component_placement:\n    actor: %s", "component_placement:\n  actor: %s"]
)
def test_a_configuration_may_be_a_file_or_the_section_that_a_cluster_has_read(make_cluster, tmp_path, text):
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(text % "0-3")
    bad.write_text(text % "0-4")
    line = text.count("\n") + 1

    for config in (good, str(good), ClusterConfig.from_file(good)):
        placement = HybridComponentPlacement(config, make_cluster(4))
        assert placement.get_strategy("actor") == FlexiblePlacementStrategy([[0], [1], [2], [3]])
    for config in (bad, ClusterConfig.from_file(bad)):
        with pytest.raises(ConfigError, match=f"{bad}:{line}: component 'actor' asks for accelerators 0-4"):
            HybridComponentPlacement(config, make_cluster(4))


@pytest.mark.parametrize(
    ("gpus", "rules", "text"),
    [
        (
            (2, 2),
            {"actor": "0-7"},
            r"component 'actor' asks for accelerators 0-7, the cluster has 4 \(node 0 'a': 2, node 1 'b': 2\)",
        ),
        ((2,), {"actor": "0,5"}, "component 'actor' asks for accelerator 5, the cluster has 2"),
        ((0, 0), {"env": 3}, "component 'env' asks for node 3, the cluster has nodes 0-1"),
        ((0,), {"env": "0-1:0"}, "component 'env' asks for nodes 0-1, the cluster has node 0 only"),
        ((0, 0), {"env": "0-1:0"}, "component 'env': .*nodes 0-1; one process cannot run across multiple nodes"),
        ((2, 2), {"actor": "0-3:0"}, "component 'actor': .*must be on the same node"),
        ((), {"actor": "0"}, "component 'actor' cannot be placed: the cluster has no nodes"),
        ((2,), {"actor,critic": "0-2"}, "component 'actor,critic' asks for accelerators 0-2"),
        ((2,), {"actor": "0-3:4-7"}, "component 'actor': Process ranks must be in ascending order and continuous"),
        ((2,), {"actor": "0,0"}, "component 'actor': Resource ranks must be unique"),
        ((2,), {"actor": "zero"}, "component 'actor': Invalid rank format 'zero'"),
        ((2,), {"actor": []}, "component 'actor': Invalid rank format ''"),
        ((2,), {"actor": None}, "component 'actor': expected a range such as 0-3 or 0-1:0-3, got None"),
        ((2,), {"actor": True}, "component 'actor': expected a range .* got True"),
        ((2,), {"actor": 0.5}, "component 'actor': expected a range .* got 0.5"),
        ((2,), {"env": {"node_group": "robot", "placement": "0"}}, "component 'env': .*not defined for this cluster"),
        ((2,), {"actor": "0", "env,actor": "1"}, "Duplicate component names .*'actor' has multiple placements"),
        ((2,), {"actor,actor": "0"}, "Duplicate component names"),
        (
            (2,),
            {"actor": "0:0-999999999"},
            "component 'actor': '0-999999999' in .* is 1000000000 ranks, more than 65536",
        ),
        ((2,), {"actor": b"0"}, "component 'actor': expected a range .* got b'0'"),
        ((2,), {True: "0"}, "component_placement.True: a component's name is a text, got True: put it in quotes"),
        ((2,), {"actor,": "0"}, "a component's name is empty in 'actor,'"),
    ],
)
def test_a_bad_rule_names_the_component_and_the_reason(make_cluster, gpus, rules, text):
    with pytest.raises(ConfigError, match=text):
        place(rules, make_cluster(*gpus))


@pytest.mark.parametrize(
    ("gpus", "rule", "text"),
    [
        (
            (0,),
            "0-7",
            "component 'actor' asks for nodes 0-7, the cluster has node 0 only; no node has an accelerator, so that "
            "ranks are nodes: where accelerators are meant, `rlinf-launch --fake-gpus 8` (or Cluster(fake_gpus=8)) "
            "declares them for a rehearsal; where nodes are meant, `rlinf-launch --local-nodes 8` (or "
            "Cluster(local_nodes=8)) tries it on this machine",
        ),
        (
            (2, 2),
            "0-1,2-6",
            "component 'actor' asks for accelerators 2-6, the cluster has 4 (node 0 'a': 2, node 1 'b': 2); to "
            "rehearse it without them, `rlinf-launch --fake-gpus 4` (or Cluster(fake_gpus=4)) declares so many on "
            "each node",
        ),
        (
            (2,),
            {"node_group": "node", "placement": "0-1:0-3"},
            "component 'actor' asks for nodes 0-1, the cluster has node 0 only; `rlinf-launch --local-nodes 2` (or "
            "Cluster(local_nodes=2)) tries it on this machine",
        ),
    ],
)
def test_a_rule_that_asks_for_more_than_there_is_says_how_it_can_be_tried(make_cluster, gpus, rule, text):
    with pytest.raises(ConfigError) as caught:
        place({"actor": rule}, make_cluster(*gpus))
    assert str(caught.value) == text


def test_a_mandatory_value_that_nobody_gave_is_a_bad_rule(make_cluster):
    config = OmegaConf.create("cluster: {component_placement: {actor: '???'}}")

    with pytest.raises(ConfigError, match="component 'actor': expected a range"):
        HybridComponentPlacement(config, make_cluster(1))


def test_a_rule_that_yaml_took_for_base_sixty_gets_a_hint(make_cluster):
    config = OmegaConf.create("cluster: {component_placement: {env: 1:3}}")

    with pytest.raises(ConfigError, match=r"asks for node 63.* unquoted 1:3 as the number 63: put it in quotes"):
        HybridComponentPlacement(config, make_cluster(0, 0))


def test_an_unknown_component_is_refused_with_those_that_exist(make_cluster):
    placement = place({"actor": 0, "rollout": 0}, make_cluster(1))

    for get in (placement.get_strategy, placement.get_world_size, placement.get_hardware_ranks):
        with pytest.raises(AssertionError, match=r"Unknown component name: 'env' .* 'actor', 'rollout'"):
            get("env")


@settings(deadline=None, derandomize=True)
@given(
    st.dictionaries(
        st.sampled_from(["actor", "critic", "env", "inference", "reward", "rollout"]),
        st.sampled_from(["0", "all", "0-3:0-7", "4-7:0-1", "1-2,5", "0-1:0-3,3-5"]),
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_of_the_entries_does_not_matter(make_cluster, rules, random):
    cluster = make_cluster(4, 4)
    shuffled = dict(random.sample(sorted(rules.items()), len(rules)))

    placement, other = place(rules, cluster), place(shuffled, cluster)

    assert sorted(placement.components) == sorted(other.components) == sorted(rules)
    for name in rules:
        plan = placement.get_strategy(name).get_placement(cluster)
        assert plan == other.get_strategy(name).get_placement(cluster)
        assert [p.rank for p in plan] == list(range(placement.get_world_size(name)))
        assert sorted({i for p in plan for i in p.global_accelerator_ids}) == placement.get_hardware_ranks(name)
