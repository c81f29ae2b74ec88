"""The history checker: each class of history is recognised."""

from __future__ import annotations

from tests.histories.history import History


def history(*taken: tuple[int, bool, int], killed: set[int] | None = None) -> History:
    """Of one producer that was to put three items, the first two of which were accepted."""
    found = History(planned={1: 3}, killed=killed or set())
    found.accept(1, ["0\n", "1\n", "2"])
    for get, (number, flagged, consumer) in enumerate(taken):
        is_kept = int(consumer not in found.killed)
        found.take(consumer, [f"1 {number} {int(flagged)} {get} 0\n", f"1 {number} 1 0 1\n"][: 1 + is_kept])
    return found


def test_a_perfect_history_has_nothing_to_tell() -> None:
    seen = history((0, False, 7), (1, False, 8))
    assert [seen.lost(), seen.unexpected(), seen.duplicated(), seen.recovered(), seen.out_of_order()] == [set()] * 5


def test_what_was_accepted_and_never_had_is_lost() -> None:
    assert history((0, False, 7)).lost() == {(1, 1)}


def test_what_nobody_has_put_is_unexpected() -> None:
    assert history((0, False, 7), (1, False, 7), (3, False, 7)).unexpected() == {(1, 3)}


def test_what_was_had_and_not_known_to_be_accepted_is_recovered() -> None:
    assert history((0, False, 7), (1, False, 7), (2, False, 7)).recovered() == {(1, 2)}


def test_a_second_time_needs_a_flag_and_nothing_is_had_for_good_twice() -> None:
    assert history((0, False, 7), (1, False, 7), (0, False, 8), killed={7}).duplicated() == {(1, 0)}
    found = history((0, False, 7), (1, False, 7), (0, True, 8), killed={7})
    assert not found.duplicated()
    found.take(7, ["1 0 1 0 1\n"])
    assert found.duplicated() == {(1, 0)}


def test_a_holder_that_is_killed_may_have_what_it_was_about_to_keep_and_nothing_else() -> None:
    ending, lost = "1 0 1 0 2\n", "1 0 1 0 3\n"
    for lines, killed, expected in (
        ([ending], {7}, set()),
        ([ending], set(), {(1, 0)}),
        ([ending, lost], {7}, {(1, 0)}),
        ([ending, lost, ending], {7}, set()),
    ):
        found = history((1, False, 8), killed=killed)
        found.take(7, lines)
        assert found.lost() == expected


def test_order_is_a_consumers_own_and_a_flag_excuses() -> None:
    assert history((1, False, 7), (0, False, 7)).out_of_order() == {(1, 0)}
    assert history((1, False, 7), (0, False, 8)).out_of_order() == set()
    assert history((1, False, 7), (0, True, 7)).out_of_order() == set()
