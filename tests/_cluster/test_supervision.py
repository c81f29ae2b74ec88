"""Supervision: ranks that are started side by side or one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._cluster.supervision import Supervision
from rlinf_async.errors import ClosedError


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


class Returning(Supervision):
    """Rank 0 is back only after rank 1, which dies meanwhile."""

    def __init__(self) -> None:
        self._away = {0: {}}
        self._changed = asyncio.Event()
        self._is_back = asyncio.Event()

    async def _bring_rank_back(self, rank: int) -> None:
        if rank == 0:
            self._away[1] = {}
            self._changed.set()
            await self._is_back.wait()
        self._is_back.set()
        del self._away[rank]


async def test_a_rank_that_dies_waits_for_no_other_to_return() -> None:
    supervision = Returning()
    async with asyncio.timeout(5):
        await supervision._bring_each_back()
    assert not supervision._away


class Restarting(Supervision):
    """A rank is restarted by hand, and its death is not reported."""

    def __init__(self) -> None:
        self._members: Any = SimpleNamespace(
            name="rollout", launching=None, restarts=[0], deaths={}, closed=False,
            hold=lambda ranks: None, release=lambda ranks: None, is_held=lambda rank: True,
        )  # fmt: skip
        self._client: Any = SimpleNamespace(later=lambda delay, call: call())
        self._free, self._away, self._working, self._changed = set(), {}, None, asyncio.Event()

    def _held_with(self, ranks: Sequence[int]) -> list[int]:
        return list(ranks)

    async def _kill(self, ranks: Iterable[int], reason: str) -> None:
        pass

    def _look(self) -> None:
        pass


async def test_a_restart_by_hand_ends_with_its_group() -> None:
    supervision = Restarting()
    restarting = asyncio.ensure_future(supervision._restart([0]))
    for _ in range(3):
        await asyncio.sleep(0)
    supervision._members.closed = True
    supervision.end()
    with pytest.raises(ClosedError, match="'rollout' was closed while it was restarted"):
        await asyncio.wait_for(restarting, 5)
