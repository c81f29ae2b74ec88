"""``EndedEndpoints``: the same as a set, in less room."""

from __future__ import annotations

import random

from hypothesis import given, strategies as st

from rlinf_async._core import frames
from rlinf_async._core.ended_endpoints import EndedEndpoints


@given(st.lists(st.integers(0, 40) | st.integers(0, 20).map(lambda number: frames.endpoint(1, number)), max_size=80))
def test_it_holds_what_was_added_and_nothing_else(added: list[int]) -> None:
    ended, expected = EndedEndpoints(), set()
    for endpoint in added:
        ended.add(endpoint)
        expected.add(endpoint)
        everything = [*range(-1, 42), *(frames.endpoint(1, number) for number in range(22))]
        assert {each for each in everything if each in ended} == expected
    assert f"[{len(expected)} in " in repr(ended)


def test_a_hundred_thousand_that_ended_beside_ten_that_live_are_eleven_stretches() -> None:
    numbers = list(range(1, 100_011))
    living = set(random.Random(0).sample(numbers[1:-1], 10))
    ended = EndedEndpoints()
    for number in random.Random(1).sample(numbers, len(numbers)):
        if number not in living:
            ended.add(number)
    assert repr(ended) == "<EndedEndpoints [100000 in 11 stretches]>"
    assert not any(number in ended for number in living)


def test_what_is_no_id_is_not_in_it() -> None:
    assert None not in EndedEndpoints()


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=20))
def test_stretches_are_taken_in_as_their_ids_one_by_one_are(stretches: list[tuple[int, int]]) -> None:
    ended, expected = EndedEndpoints(), EndedEndpoints()
    for first, more in stretches:
        ended.add_all(first, first + more)
        for endpoint in range(first, first + more + 1):
            expected.add(endpoint)
    assert repr(ended) == repr(expected)
    assert all((each in ended) == (each in expected) for each in range(-1, 50))
