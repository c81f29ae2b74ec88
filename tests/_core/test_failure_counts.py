"""Failure counts: the first failure of a kind is logged, then powers of ten."""

from __future__ import annotations

from rlinf_async._core.failure_counts import MAX_KINDS, FailureCounts


def test_a_kind_is_worth_a_line_at_powers_of_ten() -> None:
    counts = FailureCounts()
    assert [count for _ in range(1000) if (count := counts.add("kind"))] == [1, 10, 100, 1000]


def test_a_kind_that_was_forgotten_begins_anew() -> None:
    counts = FailureCounts()
    counts.add("kind")
    counts.forget("kind")
    counts.forget("another")
    assert counts.add("kind") == 1


def test_kinds_are_counted_apart() -> None:
    counts = FailureCounts()
    assert [counts.add("one"), counts.add("another"), counts.add("one")] == [1, 1, None]


def test_the_kind_that_has_not_occurred_for_longest_makes_room() -> None:
    counts = FailureCounts()
    counts.add("rare")
    for index in range(2 * MAX_KINDS):
        counts.add("frequent")
        counts.add(index)
    assert len(counts._counts) == MAX_KINDS
    assert counts.add("frequent") is None
    assert counts.add("rare") == 1
