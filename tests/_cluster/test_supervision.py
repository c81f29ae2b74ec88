"""Supervision: ranks that are started side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from rlinf_async._cluster.supervision import Supervision


class Starting(Supervision):
    """Two ranks are away; the cluster closes while the second starts."""

    def __init__(self) -> None:
        self._away = {0, 1}
        self._plan = SimpleNamespace(policy=SimpleNamespace(restarts_group=False))  # type: ignore[assignment]
        self.started: list[int] = []

    async def _afford(self, ranks: Sequence[int]) -> tuple[list[int], float]:
        return list(ranks), 0.0

    async def _move(self, ranks: list[int]) -> list[int]:
        return ranks

    async def _start(self, rank: int) -> bool:
        if rank == 0:
            raise RuntimeError("the cluster is being closed")
        await asyncio.sleep(0.01)
        self.started.append(rank)
        return True


async def test_a_start_that_fails_leaves_none_of_the_others_unawaited() -> None:
    supervision = Starting()
    with pytest.raises(RuntimeError, match="is being closed"):
        await supervision._start_all([])
    assert supervision.started == [1]
