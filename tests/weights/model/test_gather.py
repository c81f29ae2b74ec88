"""Gathering of sharded weights on one rank, bucket by bucket."""

from __future__ import annotations

from pathlib import Path

import torch

from rlinf_async.weights import ParamTree
from rlinf_async.weights.model.gather import gather_buckets
from rlinf_async.weights.model.gather_calls import GatherCalls
from rlinf_async.weights.model.shards import is_sharded
from tests.weights.scripts import run


def test_from_any_mesh_from_fsdp_and_through_the_syncers(tmp_path: Path) -> None:
    run("sharded_ranks", tmp_path / "store")


def test_a_publisher_gathers_straight_into_its_memory_and_the_other_ranks_take_part(tmp_path: Path) -> None:
    run("published_ranks", tmp_path / "store")


def test_plain_tensors_need_no_ranks() -> None:
    tree = ParamTree.of({"a": torch.ones(3), "b": torch.ones(3), "c": torch.ones(1)})
    buckets = [[path[0] for path in bucket] for bucket in gather_buckets(tree, GatherCalls().next(), 16)]
    assert buckets == [["a", "b"], ["c"]]
    assert not is_sharded(torch.ones(1))
    assert list(gather_buckets(ParamTree({}), GatherCalls().next())) == []
