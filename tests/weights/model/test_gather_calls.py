"""Shards of one call only are put together, whatever becomes of the call on each rank."""

from __future__ import annotations

from pathlib import Path

from tests.weights.scripts import run


def test_a_rank_that_alone_is_refused_or_fails_mixes_nothing_into_later_versions(tmp_path: Path) -> None:
    run("refused_ranks.py", tmp_path / "store")
