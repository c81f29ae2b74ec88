"""Sharded weights through every scheme."""

from __future__ import annotations

from pathlib import Path

import torch

from rlinf_async.weights.schemes.sharded import are_sharded, only_helps
from tests.weights.scripts import run


def test_every_rank_sends_and_the_workers_of_rank_0_have_whole_weights(tmp_path: Path) -> None:
    run("scheme_ranks", tmp_path / "store")


def test_without_a_process_group_nothing_is_sharded() -> None:
    for weights in (None, {"a": torch.ones(3)}, {"a": {"b": torch.ones(3)}}, "policy"):
        assert not are_sharded(weights)
        assert not only_helps(weights)
