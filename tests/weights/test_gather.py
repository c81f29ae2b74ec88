"""Sharded weights come whole to one rank, bucket by bucket, and to no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from rlinf_async.weights.gather import gather_buckets, is_sharded
from rlinf_async.weights.param_tree import ParamTree


def run(script: str, store: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name(script)), str(store)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr


def test_from_any_mesh_from_fsdp_and_through_the_syncers(tmp_path: Path) -> None:
    run("sharded_ranks.py", tmp_path / "store")


def test_a_publisher_gathers_straight_into_its_memory_and_the_other_ranks_take_part(tmp_path: Path) -> None:
    run("published_ranks.py", tmp_path / "store")


def test_plain_tensors_need_no_ranks() -> None:
    tree = ParamTree.of({"a": torch.ones(3), "b": torch.ones(3), "c": torch.ones(1)})
    buckets = [[path[0] for path in bucket] for bucket in gather_buckets(tree, bucket_size=16)]
    assert buckets == [["a", "b"], ["c"]]
    assert not is_sharded(torch.ones(1))
    assert list(gather_buckets(ParamTree({}))) == []
