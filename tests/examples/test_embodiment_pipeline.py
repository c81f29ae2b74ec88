from __future__ import annotations

import itertools

import pytest
from pipeline import Layout, peers, shares

DIVISIONS = list(itertools.product(range(1, 7), range(1, 7)))


@pytest.mark.parametrize(("parts", "others"), DIVISIONS)
def test_who_sends_to_whom_is_the_same_seen_from_both_sides(parts: int, others: int) -> None:
    outward = {(part, other) for part in range(parts) for other in peers(part, parts, others)}
    inward = {(part, other) for other in range(others) for part in peers(other, others, parts)}
    assert outward == inward
    assert {other for _, other in outward} == set(range(others))


@pytest.mark.parametrize(("parts", "others"), DIVISIONS)
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 12])
def test_every_row_has_one_taker_and_peers_without_rows_have_an_empty_share(parts: int, others: int, rows: int) -> None:
    for part in range(parts):
        held = shares(rows, part, parts, others)
        assert list(held) == list(peers(part, parts, others))
        taken = [row for share in held.values() for row in range(rows)[share]]
        assert taken == list(range(rows))


def test_rows_are_shared_in_proportion() -> None:
    assert shares(6, part=0, parts=2, others=3) == {0: slice(0, 4), 1: slice(4, 6)}
    assert shares(6, part=1, parts=2, others=3) == {1: slice(0, 2), 2: slice(2, 6)}


def test_an_actor_learns_from_consecutive_simulators_whatever_the_stages() -> None:
    layout = Layout(env_ranks=2, rollout_ranks=1, actor_ranks=2, stages=2)
    assert layout.experience_sources(0) == [(0, 0), (0, 1)]
    assert layout.experience_sources(1) == [(1, 0), (1, 1)]
    assert layout.actor_shares(1, 0, rows=8) == {1: slice(0, 8)}


def test_actors_have_equal_shares_where_a_stage_feeds_two_of_them() -> None:
    layout = Layout(env_ranks=1, rollout_ranks=1, actor_ranks=3, stages=2)
    taken = [0, 0, 0]
    for stage in range(2):
        for actor, rows in layout.actor_shares(0, stage, rows=6).items():
            taken[actor] += rows.stop - rows.start
    assert taken == [4, 4, 4]
    assert layout.experience_sources(1) == [(0, 0), (0, 1)]
