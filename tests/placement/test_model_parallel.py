"""Model-parallel placement: modes, sizes, accelerators."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from rlinf_async.configuration import ClusterConfig
from rlinf_async.errors import ConfigError
from rlinf_async.placement import (
    ModelParallelComponentPlacement,
    ModelParallelEvalComponentPlacement,
    MultiAgentModelParallelComponentPlacement,
    PackedPlacementStrategy,
    PlacementMode,
    RolloutSyncMode,
    placement_mode_to_rollout_sync_mode,
)


def configure(rules, *, actor=(1, 1), rollout=1, inference=None, recompute=True, **cluster):
    config = {
        "cluster": {"component_placement": rules, **cluster},
        "algorithm": {"recompute_logprobs": recompute},
        "actor": {"model": {"tensor_model_parallel_size": actor[0], "pipeline_model_parallel_size": actor[1]}},
        "rollout": {"tensor_parallel_size": rollout},
    }
    if inference is not None:
        config["inference"] = {"model": {"tensor_model_parallel_size": inference}}
    return OmegaConf.create(config)


def place(cluster, rules, **options):
    return ModelParallelComponentPlacement(configure(rules, **options), cluster)


def test_sizes_are_read_from_a_file_and_are_not_in_a_section(make_cluster, tmp_path):
    cluster, path = make_cluster(4, 4), tmp_path / "job.yaml"
    config = configure({"actor,rollout,reward": "all"}, actor=(4, 1), rollout=2)
    path.write_text(OmegaConf.to_yaml(config))

    assert ModelParallelComponentPlacement(path, cluster).get_strategy("rollout") == place(
        cluster, {"actor,rollout,reward": "all"}, actor=(4, 1), rollout=2
    ).get_strategy("rollout")
    with pytest.raises(ConfigError, match="reads the sizes in 'actor' and 'rollout' too: give the whole"):
        ModelParallelComponentPlacement(ClusterConfig.from_file(path), cluster)


def test_an_interpolation_that_leads_nowhere_is_named(make_cluster):
    with pytest.raises(ConfigError, match=r"rollout\.tensor_parallel_size: Interpolation key 'nope' not found"):
        place(make_cluster(4), {"actor,rollout,reward": "all"}, rollout="${nope}")


def test_a_section_whose_interpolation_leads_nowhere_is_named(make_cluster, tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("cluster: {component_placement: {'actor,rollout,reward': all}}\nrollout: ${nope}\nreward: ???\n")
    with pytest.raises(ConfigError, match=r"rollout\.tensor_parallel_size: Interpolation key 'nope' not found"):
        ModelParallelComponentPlacement(path, make_cluster(4))


def test_on_the_same_accelerators_an_engine_has_those_of_its_part_of_the_actor(make_cluster):
    cluster = make_cluster(4, 4)

    placement = place(cluster, {"actor,rollout,reward": "all"}, actor=(4, 1), rollout=2)

    assert placement.placement_mode is PlacementMode.COLLOCATED
    assert (placement.is_collocated, placement.is_disaggregated, placement.is_auto) == (True, False, False)
    assert not placement.is_pipeline
    assert placement._rollout_sync_mode is RolloutSyncMode.COLLOCATED
    assert placement.get_strategy("actor") == PackedPlacementStrategy(0, 7)
    assert placement.get_strategy("rollout") == PackedPlacementStrategy(0, 7, 2, stride=2)
    ids = [p.global_accelerator_ids for p in placement.get_strategy("rollout").get_placement(cluster)]
    assert ids == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert (placement.actor_dp_size, placement.actor_tp_size, placement.actor_pp_size) == (2, 4, 1)
    assert (placement.rollout_dp_size, placement.rollout_tp_size, placement.rollout_world_size) == (4, 2, 8)
    assert (placement.get_world_size("actor"), placement.get_world_size("rollout")) == (8, 4)
    assert placement._cluster_num_gpus == 8


@pytest.mark.parametrize(("actor", "rollout", "per_process", "stride"), [(2, 2, 2, 1), (1, 4, 4, 1), (4, 1, 1, 4)])
def test_the_stride_is_what_the_actor_has_more_of(make_cluster, actor, rollout, per_process, stride):
    placement = place(make_cluster(4), {"actor,rollout,reward": "0-3"}, actor=(actor, 1), rollout=rollout)

    assert placement.get_strategy("rollout") == PackedPlacementStrategy(0, 3, per_process, stride)


def test_each_strategy_knows_whose_it_is(make_cluster):
    placement = place(make_cluster(4, 4), {"actor,rollout,reward": "all"})
    assert [placement.get_strategy(name).component for name in placement.components] == placement.components


def test_each_on_its_own_accelerators_works_at_the_same_time(make_cluster):
    rules = {"rollout,reward": "0-3", "inference": "4-5", "actor": "6-7"}

    placement = place(make_cluster(8), rules, actor=(1, 2), rollout=2, inference=2)

    assert placement.placement_mode is PlacementMode.DISAGGREGATED
    assert placement.is_pipeline
    assert placement.has_dedicated_inference
    assert placement.has_dedicated_inference_for_role("actor")
    assert not placement.has_dedicated_inference_for_role("critic")
    assert placement.get_strategy("rollout") == PackedPlacementStrategy(0, 3, 2)
    assert placement.get_strategy("actor") == PackedPlacementStrategy(6, 7)
    assert placement.get_strategy("inference") == PackedPlacementStrategy(4, 5)
    assert (placement.actor_pp_size, placement.actor_dp_size) == (2, 1)
    assert (placement.inference_tp_size, placement.inference_dp_size) == (2, 1)


def test_inference_has_the_actors_sizes_where_nothing_is_said_and_may_be_called_the_actors(make_cluster):
    placement = place(
        make_cluster(8), {"rollout,reward": "0-3", "actor_inference": "4-5", "actor": "6-7"}, actor=(2, 1)
    )

    assert placement.inference_tp_size == 2
    assert placement.get_strategy("actor_inference") == placement.get_strategy("inference")
    assert placement.get_world_size("actor_inference") == 2
    assert placement.get_hardware_ranks("actor_inference") == [4, 5]


@pytest.mark.parametrize(("borrows", "first"), [(False, 2), (True, 0)])
def test_with_the_scheduler_the_actor_has_a_process_everywhere(make_cluster, borrows, first):
    rules = {"actor": "0-1", "rollout": "2-5", "inference": "6-7", "reward": 0}

    placement = place(
        make_cluster(4, 4), rules, actor=(2, 1), rollout=2, auto_scheduler=True, use_pre_process_policy=borrows
    )

    assert placement.placement_mode is PlacementMode.AUTO
    assert placement.is_pipeline
    assert placement.get_strategy("actor") == PackedPlacementStrategy(0, 7)
    assert placement.get_strategy("rollout") == PackedPlacementStrategy(first, 5, 2)
    assert placement.get_strategy("inference") == PackedPlacementStrategy(6, 7)
    assert (placement.actor_dp_size, placement.actor_world_size) == (1, 2)


def test_critic_and_agents_have_their_places_too(make_cluster):
    rules = {"actor,critic,rollout": "0-3", "reward": "0", "planner": "0-1:0-3"}

    placement = MultiAgentModelParallelComponentPlacement(configure(rules), make_cluster(4))

    assert placement.critic_world_size == 4
    assert placement.get_strategy("critic") == PackedPlacementStrategy(0, 3)
    assert placement.get_world_size("planner") == 4
    assert placement.get_world_size("reward") == 1
    assert placement.components == ["actor", "critic", "rollout", "reward", "planner"]


def test_components_in_node_groups_are_compared_by_their_accelerators(make_grouped):
    cluster = make_grouped([2, 2], a=0, b=1)
    rules = {
        "actor": {"node_group": "a", "placement": "0-1"},
        "rollout": {"node_group": "b", "placement": "0-1"},
        "reward": 0,
    }

    placement = place(cluster, rules)

    assert placement.is_disaggregated
    assert placement.get_strategy("rollout") == PackedPlacementStrategy(0, 1, node_group="b")


def test_an_evaluation_needs_no_actor(make_cluster):
    placement = ModelParallelEvalComponentPlacement(configure({"rollout,reward": "0-3"}, rollout=2), make_cluster(4))

    assert placement.get_strategy("rollout") == PackedPlacementStrategy(0, 3, 2)
    with pytest.raises(ConfigError, match="component 'actor' has no parallel sizes here; 'rollout' have"):
        _ = placement.actor_dp_size


@pytest.mark.parametrize(
    ("rules", "options", "text"),
    [
        (
            {"actor,rollout": "0-3"},
            {},
            "needs 'actor', 'rollout', 'reward' in .*; 'reward' is missing",
        ),
        ({"actor": "0-3", "rollout": "2-5", "reward": 0}, {}, r"share accelerators 2-3: actor and rollout must be on"),
        ({"actor,rollout,inference,reward": "0-3"}, {}, "'inference' cannot be placed beside an actor and a rollout"),
        (
            {"actor": "0-1", "rollout": "2-3", "inference": "4-5", "reward": 0},
            {"recompute": False},
            "algorithm.recompute_logprobs does not ask for",
        ),
        ({"actor": "0-1", "rollout": "2-4", "inference": "4-5", "reward": 0}, {}, "share accelerators 4"),
        ({"actor,rollout": "0-1,4-5", "reward": 0}, {}, "has accelerators 0-1,4-5; .* must be contiguous"),
        (
            {"actor,rollout,reward": "0-3"},
            {"actor": (3, 1)},
            "'actor' has 4 accelerators, .* by the 3 .*tp 3",
        ),
        ({"actor,rollout,reward": "0-3"}, {"rollout": 8}, "'rollout' has 4 accelerators, .* divisible by the 8 of one"),
        (
            {"actor,rollout,reward": "0-5"},
            {"actor": (3, 1), "rollout": 2},
            r"size \(3\) must be divisible by rollout",
        ),
        (
            {"actor,rollout,reward": "0-3"},
            {"actor": (0, 1)},
            "actor.model.tensor_model_parallel_size must be",
        ),
        ({"actor": "0-3:0-1", "rollout,reward": "4-7"}, {}, "asks for 2 processes, .* 'actor' has 4 .one per accel"),
        (
            {"actor": "0-3", "rollout": "4-7:0-1", "reward": 0},
            {},
            "asks for 2 processes, .* 'rollout' has 4 .one per",
        ),
        ({"actor": "0-3", "rollout": "4-7", "reward": 0, "inference": 7, "actor_inference": 7}, {}, "are the same"),
        (
            {"rollout": "0-1", "actor": "2-7", "reward": 0},
            {"auto_scheduler": True},
            "in the order actor, rollout and cover the 8 accelerators .*; they have: actor 2-7, rollout 0-1",
        ),
        ({"actor": "0-1", "rollout": "2-3", "reward": 0}, {"auto_scheduler": True}, "cover the 8 accelerators"),
        (
            {"actor,critic": "0-3", "rollout": "4-7", "reward": 0},
            {"auto_scheduler": True},
            "auto_scheduler does not know component 'critic'",
        ),
    ],
)
def test_what_fits_no_mode_is_refused(make_cluster, rules, options, text):
    with pytest.raises(ValueError, match=text):
        place(make_cluster(8), rules, **options)


def test_the_number_of_engines_may_be_said_as_it_is(make_cluster):
    rules = {"actor": "0-3", "rollout": "4-7:0-1", "reward": 0}

    assert place(make_cluster(8), rules, rollout=2).get_world_size("rollout") == 2


def test_an_engine_never_spans_two_nodes(make_cluster):
    with pytest.raises(ConfigError, match="cannot spread across multiple nodes"):
        place(make_cluster(2, 2), {"actor,rollout,reward": "all"}, actor=(1, 1), rollout=4)


def test_without_accelerators_there_is_no_model_parallel_placement(make_cluster):
    with pytest.raises(ConfigError, match=r"component 'actor,rollout,reward' needs accelerators"):
        place(make_cluster(0), {"actor,rollout,reward": "all"})


def test_a_role_is_the_actors_or_the_critics(make_cluster):
    with pytest.raises(ConfigError, match="a role is 'actor' or 'critic', got 'reward'"):
        place(make_cluster(2), {"actor,rollout,reward": "all"}).has_dedicated_inference_for_role("reward")


def test_the_hybrid_mode_does_not_say_how_weights_travel():
    modes = [placement_mode_to_rollout_sync_mode(mode).name for mode in PlacementMode if mode.name != "HYBRID"]
    assert modes == ["COLLOCATED", "DISAGGREGATED", "AUTO"]
    with pytest.raises(ConfigError, match="placement mode HYBRID does not say"):
        placement_mode_to_rollout_sync_mode(PlacementMode.HYBRID)
