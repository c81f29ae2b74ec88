"""Sharded weights come whole to one rank, bucket by bucket, and to no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from rlinf_async.weights.gather import gather_buckets, is_sharded
from rlinf_async.weights.param_tree import ParamTree

SCRIPT = Path(__file__).with_name("sharded_ranks.py")


def test_from_any_mesh_from_fsdp_and_through_the_syncers(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr


def test_plain_tensors_need_no_ranks() -> None:
    tree = ParamTree.of({"a": torch.ones(3), "b": torch.ones(3), "c": torch.ones(1)})
    buckets = [[path[0] for path in bucket] for bucket in gather_buckets(tree, bucket_size=16)]
    assert buckets == [["a", "b"], ["c"]]
    assert not is_sharded(torch.ones(1))
    assert list(gather_buckets(ParamTree({}))) == []
