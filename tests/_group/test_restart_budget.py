"""Restarts that a rank, or a group, has left."""

from __future__ import annotations

from rlinf_async._group.restart_budget import FIRST_PAUSE_S, MAX_PAUSE_S, RestartBudget
from rlinf_async.configuration import RestartPolicy


def test_each_restart_waits_twice_as_long_up_to_ten_seconds() -> None:
    budget = RestartBudget(RestartPolicy("rank", max_restarts=100, window=1000))
    pauses = [budget.spend(0, float(now)) for now in range(12)]
    assert pauses[:4] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S, 8 * FIRST_PAUSE_S]
    assert pauses[-1] == pauses[-2] == MAX_PAUSE_S


def test_a_rank_that_has_lived_for_a_while_is_back_at_once_however_often_it_has_died() -> None:
    budget = RestartBudget(RestartPolicy("rank", max_restarts=100, window=1000))
    assert [budget.spend(0, now) for now in (0.0, 1.0, 11.0, 11.3, 40.0)] == [
        FIRST_PAUSE_S,
        2 * FIRST_PAUSE_S,
        4 * FIRST_PAUSE_S,  # after 9.8 s
        8 * FIRST_PAUSE_S,
        FIRST_PAUSE_S,
    ]


def test_with_one_more_within_the_window_there_is_none() -> None:
    budget = RestartBudget(RestartPolicy("rank", max_restarts=2, window=60))
    assert [budget.spend(3, now) is None for now in (0.0, 1.0, 2.0, 59.9)] == [False, False, True, True]
    assert budget.spend(3, 60.0) == FIRST_PAUSE_S  # the first one is no longer counted
    assert budget.spend(3, 200.0) == FIRST_PAUSE_S


def test_ranks_do_not_share_theirs() -> None:
    budget = RestartBudget(RestartPolicy("rank", max_restarts=1, window=60))
    assert [budget.spend(rank, 0.0) for rank in (0, 1, 0)] == [FIRST_PAUSE_S, FIRST_PAUSE_S, None]


def test_a_policy_of_none_allows_none() -> None:
    assert RestartBudget(RestartPolicy("group", max_restarts=0)).spend(-1, 0.0) is None
