from __future__ import annotations

import pytest
from batch_sizes import BatchSizes
from configuration import SCHEMA

from rlinf_async.errors import ConfigError


def sizes(*, env_ranks: int = 2, actor_ranks: int = 2, **overrides: int) -> BatchSizes:
    keys = {
        "envs": "env.total_num_envs",
        "steps": "algorithm.rollout_steps",
        "batch": "actor.global_batch_size",
        "micro": "actor.micro_batch_size",
        "stages": "rollout.pipeline_stage_num",
    }
    values = {"envs": 8, "steps": 16, "batch": 64, "micro": 16, "stages": 1} | overrides
    cfg = SCHEMA.load("inverted_pendulum_ppo", [f"{keys[name]}={value}" for name, value in values.items()])
    return BatchSizes.of(cfg, env_ranks=env_ranks, actor_ranks=actor_ranks)


def test_sizes_divide_over_ranks() -> None:
    assert sizes() == BatchSizes(rollout=128, rollout_per_rank=64, minibatch_per_rank=32, micro_batch=16, minibatches=2)


def test_more_ranks_change_what_each_does_and_not_the_algorithm() -> None:
    one, four = sizes(actor_ranks=1), sizes(actor_ranks=4)
    assert one.minibatches == four.minibatches
    assert one.minibatch_per_rank == 4 * four.minibatch_per_rank


@pytest.mark.parametrize(
    ("ranks", "overrides", "complaint"),
    [
        ({"env_ranks": 3}, {}, r"env.total_num_envs \(8\) .* ranks of env \(3\)"),
        ({"actor_ranks": 3}, {}, r"env.total_num_envs \(8\) .* ranks of actor \(3\)"),
        ({}, {"stages": 3}, r"env.total_num_envs \(4\) .* rollout.pipeline_stage_num \(3\)"),
        ({}, {"batch": 96}, r"rollout_steps \(128\) .* actor.global_batch_size \(96\)"),
        ({}, {"micro": 12}, r"actor.global_batch_size \(32\) .* actor.micro_batch_size \(12\)"),
        ({"actor_ranks": 8}, {"batch": 4}, r"actor.global_batch_size \(4\) .* ranks of actor \(8\)"),
    ],
)
def test_a_size_that_does_not_divide_is_named(ranks: dict[str, int], overrides: dict[str, int], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        sizes(**ranks, **overrides)
