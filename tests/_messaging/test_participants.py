"""Parsing of an exchange's participants and options."""

from __future__ import annotations

from typing import Any

import pytest

from rlinf_async import ConfigError
from rlinf_async._messaging.collective_options import CollectiveGroupOptions
from rlinf_async._messaging.participants import Member, expand


@pytest.mark.parametrize(
    ("rank", "member"),
    [
        (3, Member("g", 3)),
        ([3], Member("g", 3)),
        ((2, 0), Member("g:2", 0)),
        ([2, 0, 5], Member("g:2:0", 5)),
    ],
)
def test_a_rank_or_a_path_of_ranks_names_a_worker(rank: Any, member: Member) -> None:
    assert Member.of("g", rank) == member


@pytest.mark.parametrize("rank", [None, 1.0, "1", True, [1, "2"], {1}, object()])
def test_anything_else_does_not(rank: Any) -> None:
    with pytest.raises(TypeError, match="a rank of 'g' is an int, or a path of ints"):
        Member.of("g", rank)


def test_the_members_of_a_broadcast_are_expanded_in_order_and_once() -> None:
    members, source = expand([("a", 1), ("b", [0, 1]), ("a", (1,)), ("b", [(0, 2), (1,)]), ("c", (0, 1))], None)
    assert members == [Member("a", 1), Member("b", 0), Member("b", 1), Member("b:0", 2), Member("c:0", 1)]
    assert source == Member("a", 1)
    assert expand([("a", [0, 1])], ("a", (1,)))[1] == Member("a", 1)


@pytest.mark.parametrize("groups", [None, [], [("a", [])]])
def test_a_broadcast_without_members_is_an_error(groups: Any) -> None:
    with pytest.raises(ValueError, match="broadcast"):
        expand(groups, None)


@pytest.mark.parametrize("groups", ["a", (("a", 0),), ["a"], [("a",)], [("a", None)], [(3, 0)], [("a", ["0"])]])
def test_members_that_are_not_as_they_should_be_are_an_error(groups: Any) -> None:
    with pytest.raises(TypeError):
        expand(groups, None)


def test_a_source_must_be_a_member() -> None:
    with pytest.raises(ValueError, match="src= is rank 2 of group 'a', which is not in groups=: rank 0 of group 'a'"):
        expand([("a", 0)], ("a", 2))
    with pytest.raises(TypeError, match="src= takes a"):
        expand([("a", 0)], "a")


@pytest.mark.parametrize(
    "wrong",
    [
        {"accel_cluster_size": 9},
        {"accel_cluster_size": -1},
        {"accel_max_ctas": 0},
        {"accel_max_ctas": 33},
        {"accel_min_ctas": 1.5},
        {"accel_max_ctas": 2, "accel_min_ctas": 3},
    ],
)
def test_options_out_of_range_are_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        CollectiveGroupOptions(**wrong)
    with pytest.raises(AssertionError):
        CollectiveGroupOptions(**wrong)


def test_options_know_whether_they_say_anything() -> None:
    assert CollectiveGroupOptions().is_empty_options()
    assert not CollectiveGroupOptions(accel_max_ctas=32, accel_min_ctas=32).is_empty_options()
    assert not CollectiveGroupOptions(use_ring_broadcast=True).is_empty_options()
