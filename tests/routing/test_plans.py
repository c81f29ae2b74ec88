"""Routing plans: both sides agree and every row has a destination."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from rlinf_async.errors import ConfigError
from rlinf_async.routing import (
    ANY,
    CommMapper,
    build_batch_index,
    build_recv_plan,
    build_route_channel_key,
    build_send_key,
    build_send_plan,
    decoupled_build_recv_plan,
    decoupled_build_send_plan,
    split_channel_message,
)

_SIZES = st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 5))
"""World sizes of both groups, and how many times the smallest batch that divides by both."""


def sizes_of(sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    source, destination, times = sizes
    return source, destination, math.lcm(source, destination) * times


@settings(max_examples=150, derandomize=True, deadline=None)
@given(_SIZES)
def test_both_sides_have_the_same_plan_and_every_row_is_in_it_once(sizes: tuple[int, int, int]) -> None:
    source, destination, batch = sizes_of(sizes)
    facts: dict[str, Any] = {
        "src_group_name": "env",
        "dst_group_name": "rollout",
        "src_world_size": source,
        "dst_world_size": destination,
        "batch_size": batch,
        "tag": "obs",
    }
    sent, received = [], []
    for rank in range(source):
        plan = build_send_plan(src_rank=rank, **facts)
        assert plan.batch_size == batch // source
        sent += [(rank, entry.peer_rank, entry.batch_size, entry.key) for entry in plan.entries]
    for rank in range(destination):
        plan = build_recv_plan(dst_rank=rank, **facts)
        assert plan.batch_size == batch // destination
        received += [(entry.peer_rank, rank, entry.batch_size, entry.key) for entry in plan.entries]
        without_size = build_recv_plan(dst_rank=rank, **{**facts, "batch_size": None})
        assert [entry.key for entry in without_size.entries] == [entry.key for entry in plan.entries]
    assert sorted(sent) == sorted(received)
    assert all(size > 0 for _, _, size, _ in sent)
    assert len({key for *_, key in sent}) == len(sent)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(_SIZES)
def test_decoupled_shards_fit_both_groups_and_all_go_back(sizes: tuple[int, int, int]) -> None:
    source, destination, batch = sizes_of(sizes)
    facts: dict[str, Any] = {"batch_size": batch, "tag": "obs"}
    there = {"src_group_name": "env", "dst_group_name": "rollout"}
    back = {"src_group_name": "rollout", "dst_group_name": "env"}
    env, rollout = (
        {"src_world_size": own, "dst_world_size": other}
        for own, other in ((source, destination), (destination, source))
    )
    sent = [
        decoupled_build_send_plan(src_rank=rank, mode="train", **there, **env, **facts).entries
        for rank in range(source)
    ]
    wanted = decoupled_build_recv_plan(recv_rank=None, **there, **rollout, **facts).entries
    shards = [entry for plan in sent for entry in plan]
    assert len(shards) == len(wanted) * destination
    assert {(entry.key, entry.batch_size) for entry in shards} == {(entry.key, entry.batch_size) for entry in wanted}
    assert len({entry.batch_index for entry in shards}) == len(shards)
    # Whoever takes which of them, all come back to their origins.
    answers = []
    for rank in range(destination):
        mine = [entry.batch_index for entry in shards[rank::destination]]
        facts_of_rank: dict[str, Any] = {**facts, "batch_size": len(mine) * shards[0].batch_size}
        if mine:
            plan = decoupled_build_send_plan(src_rank=rank, tag_batch_router=mine, **back, **rollout, **facts_of_rank)
            answers += plan.entries
    for rank in range(source):
        expected = decoupled_build_recv_plan(recv_rank=rank, **back, **env, **facts).entries
        arrived = [entry for entry in answers if split_channel_message(entry.batch_index)[0] == rank]
        assert sorted(entry.batch_index for entry in arrived) == sorted(entry.batch_index for entry in sent[rank])
        assert [(entry.key, entry.batch_size) for entry in arrived] == [
            (entry.key, entry.batch_size) for entry in expected
        ]


def test_a_batch_that_cannot_be_split_evenly_is_an_error() -> None:
    with pytest.raises(AssertionError, match="a batch of 10 cannot be split evenly into 4 parts"):
        CommMapper.get_dst_ranks(10, 2, 4, 0)
    with pytest.raises(ConfigError, match="no rank 2 in a group of 2"):
        CommMapper.get_dst_ranks(8, 2, 4, 2)
    with pytest.raises(ConfigError, match="queue size 4: of a batch of 12, which 2 ranks exchange with 3, each has 3"):
        CommMapper.decoupled_get_batch_size(12, 2, 3, queue_size=4)


def test_a_negative_number_of_shards_is_an_error() -> None:
    with pytest.raises(ConfigError, match="queue size -1"):
        CommMapper.decoupled_get_batch_size(12, 2, 3, -1)


def test_decoupled_shards_are_as_large_as_they_can_be() -> None:
    assert CommMapper.decoupled_get_batch_size(12, 2, 3) == [2, 2, 2]
    assert CommMapper.decoupled_get_batch_size(12, 4, 2) == [3]
    assert CommMapper.decoupled_get_batch_size(12, 2, 3, queue_size=1) == [2]


def test_keys_tell_routes_apart() -> None:
    key = build_route_channel_key("env", "rollout", 1, 2, None)
    assert key == ("scheduler_route", "env", "rollout", "default", "", 1, 2)
    route: dict[str, Any] = {"src_rank": 1, "dst_rank": 2, "tag": "obs", "route_key": (1, "a")}
    by_name = build_send_key(src_group_name="env", dst_group_name="rollout", **route)
    assert by_name == ("scheduler_route", "env", "rollout", "obs", "(1, 'a')", 1, 2)
    assert build_route_channel_key("a", "b", 0, 0, "t", "text")[4] == "text"
    assert build_route_channel_key("a", "b", None, 3, "t")[5:] == (ANY, 3)
    assert CommMapper.build_channel_key(1, 2, "train") == "1_2_train"


def test_the_name_of_a_shard_says_where_it_comes_from() -> None:
    assert split_channel_message(build_batch_index(3, 7, "train", "obs_of_1")) == (3, 7, "train", "obs_of_1")
    assert build_batch_index(0, 0, None, None) == "0_0_default_default"
    with pytest.raises(ValueError, match="must not contain '_'"):
        build_batch_index(0, 0, "eval_2", None)
    with pytest.raises(ValueError, match="no name of a shard"):
        split_channel_message("obs")
