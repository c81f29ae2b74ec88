from __future__ import annotations

from typing import Any

import pytest
from configuration import SCHEMA, Configuration
from defaults import fill_in

from rlinf_async.address import NodeInfo


def machine(rank: int = 0, *, cpus: int = 2, accelerators: int = 0) -> NodeInfo:
    devices = tuple(map(str, range(accelerators)))
    return NodeInfo(rank, f"n{rank}", "10.0.0.1", cpus, devices, "NV_GPU" if devices else "NO_ACCEL")


def chosen(*overrides: str, nodes: tuple[NodeInfo, ...] = (machine(),)) -> Configuration:
    return fill_in(SCHEMA.load("halfcheetah_ppo", overrides), nodes)


def ranks(cfg: Configuration) -> dict[str, Any]:
    rules = cfg.cluster.component_placement
    return {name: rule["placement"] if isinstance(rule, dict) else rule for name, rule in rules.items()}


def test_a_small_policy_infers_in_an_env_worker_on_each_cpu_and_is_trained_by_one_thread() -> None:
    cfg = chosen()
    assert (cfg.rollout.placement, cfg.rollout.pipeline_stage_num, cfg.actor.threads) == ("with_env", 1, 1)
    assert ranks(cfg) == {"env": "0-0:0-1", "actor": "0-0:0-0"}


def test_a_large_policy_has_a_rollout_group_and_ranks_on_all_accelerators() -> None:
    large = ("actor.model.hidden_sizes=[1024,1024]", "actor.device=auto", "rollout.device=auto")
    cfg = chosen(*large, nodes=(machine(cpus=8, accelerators=4),))
    assert (cfg.rollout.placement, cfg.rollout.pipeline_stage_num, cfg.actor.threads) == ("workers", 2, 8)
    assert ranks(cfg) == {"env": "0-0:0-7", "actor": "0-3", "rollout": "0-3"}


def test_a_large_policy_without_accelerators_is_trained_by_all_cpus_of_one_rank() -> None:
    cfg = chosen("actor.model.hidden_sizes=[1024,1024]", nodes=(machine(cpus=8),))
    assert cfg.actor.threads == 8
    assert ranks(cfg)["actor"] == ranks(cfg)["rollout"] == "0-0:0-0"


def test_env_workers_are_alike_on_every_node_and_divide_the_simulators() -> None:
    assert ranks(chosen(nodes=(machine(0, cpus=6), machine(1, cpus=8))))["env"] == "0-1:0-7"


def test_no_env_worker_that_infers_has_fewer_than_four_simulators() -> None:
    assert ranks(chosen("env.total_num_envs=8", nodes=(machine(cpus=8),)))["env"] == "0-0:0-1"


@pytest.mark.parametrize("cpus", [1, 3, 5, 64])
def test_the_simulators_can_always_be_divided(cpus: int) -> None:
    first, last = ranks(chosen(nodes=(machine(cpus=cpus),)))["env"].split(":")[1].split("-")
    assert 32 % (int(last) - int(first) + 1) == 0


def test_what_the_configuration_says_is_kept() -> None:
    cfg = chosen(
        *("rollout.placement=workers", "rollout.pipeline_stage_num=1", "actor.threads=3"),
        *("cluster.component_placement.actor=0", "cluster.component_placement.env=0:0-3"),
    )
    assert (cfg.rollout.placement, cfg.rollout.pipeline_stage_num, cfg.actor.threads) == ("workers", 1, 3)
    assert ranks(cfg) == {"actor": "0", "env": "0:0-3", "rollout": "0-0:0-0"}


def test_a_rollout_group_that_is_placed_is_launched() -> None:
    assert chosen("cluster.component_placement.rollout=0").rollout.placement == "workers"
