"""``PoolCalls``: ranks that have answered with word of their own end, and ranks that say nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._core import clock, frames
from rlinf_async._core.frames import Status
from rlinf_async._group.pool_calls import PoolCalls
from rlinf_async._group.rank_pool import Attempt, PoolRequest, Standing


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


def test_the_calls_behind_a_stalled_call_go_to_another_rank() -> None:
    started: list[int] = []
    owner = SimpleNamespace(_start=lambda attempt: not started.append(attempt.rank), _stall=Attempt.detach)
    events = SimpleNamespace(counts_from=lambda since: since)
    client = SimpleNamespace(listen=lambda *_: None, lost_nodes={}, events=events)
    members: Any = SimpleNamespace(
        size=2, endpoints=[10, 11], deaths={}, client=client, is_held=lambda rank: False, supervisor=None
    )  # fmt: skip
    pool = PoolCalls(members)
    for timeout in (5.0, None):
        pool._state.submit(PoolRequest((0, 1), 1, timeout, key="talk", owner=owner), clock.monotonic() - 10.0)
    pool._due = 0.0
    pool._look_for_stalls()
    assert started == [1]
