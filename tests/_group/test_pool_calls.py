"""Ranks that have answered a call of a pool with word of their own end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._core import frames
from rlinf_async._core.frames import Status
from rlinf_async._group.pool_calls import PoolCalls
from rlinf_async._group.rank_pool import PoolRequest, Standing


@pytest.mark.parametrize("is_owner", [True, False])
@pytest.mark.parametrize(
    ("status", "body", "by_owner", "by_others"),
    [
        (Status.DIED, {"returns": True}, Standing.AWAY, Standing.AWAY),
        (Status.DIED, {"returns": False}, Standing.GONE, Standing.GONE),
        (Status.LOST, [1, "it burnt"], Standing.AWAY, Standing.GONE),
        (Status.ERROR, {}, Standing.LIVE, Standing.LIVE),
    ],
)
def test_a_rank_is_away_where_its_death_says_so_or_its_owner_starts_it_elsewhere(
    status: Status, body: Any, by_owner: Standing, by_others: Standing, is_owner: bool
) -> None:
    client = SimpleNamespace(listen=lambda *_: None, lost_nodes={})
    members: Any = SimpleNamespace(
        size=1, endpoints=[10], deaths={}, client=client, is_held=lambda rank: False,
        supervisor=object() if is_owner else None,
    )  # fmt: skip
    pool = PoolCalls(members)
    attempt = pool._state.place(PoolRequest((0,)), 0.0)
    assert attempt is not None
    pool.ended(attempt, 10, status, frames.pack(body))
    assert pool._state.standing == [by_owner if is_owner else by_others]
