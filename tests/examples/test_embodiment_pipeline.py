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


@pytest.mark.parametrize(("env_ranks", "actor_ranks"), DIVISIONS)
@pytest.mark.parametrize("stages", [1, 2])
def test_actors_learn_from_as_many_consecutive_simulators_each_in_as_many_parts(
    env_ranks: int, actor_ranks: int, stages: int
) -> None:
    layout, rows = Layout(env_ranks, 1, actor_ranks, stages), actor_ranks
    simulators = iter(range(env_ranks * stages * rows))
    parts: dict[int, list[int]] = {}
    for env_rank, stage in itertools.product(range(env_ranks), range(stages)):
        held = list(itertools.islice(simulators, rows))
        for part, share in layout.experience_parts(env_rank, stage, rows).items():
            assert part not in parts, "a part is of one stage"
            parts[part] = held[share]
    assert list(parts) == list(range(actor_ranks * layout.parts_per_actor))
    in_order = [simulator for part in sorted(parts) for simulator in parts[part]]
    assert in_order == list(range(env_ranks * stages * rows))
    sizes = [0] * actor_ranks
    for part, share_of_it in parts.items():
        sizes[part // layout.parts_per_actor] += len(share_of_it)
    assert sizes == [env_ranks * stages] * actor_ranks
