"""Gather calls that fail on some ranks: shards of different calls are never mixed."""

from __future__ import annotations

from pathlib import Path

from tests.weights.scripts import run


def test_a_rank_that_alone_is_refused_or_fails_mixes_nothing_into_later_versions(tmp_path: Path) -> None:
    run("refused_ranks", tmp_path / "store")
