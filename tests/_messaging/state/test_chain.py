"""Chains of machines: order of forwarding after every break."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from rlinf_async._messaging.state.chain import DISTRUST_S, Chain, chain_sizes

MEBI = 1 << 20

events = st.lists(st.tuples(st.sampled_from(["landed", "leave", "cut"]), st.integers(0, 7)), max_size=12)


def test_each_is_behind_the_one_before_it() -> None:
    chain = Chain()
    chain.plan([3, 1, 2], 0.0)
    assert [chain.source(node) for node in (3, 1, 2)] == [None, 3, 1]
    assert chain.behind(3) == [1, 2]
    assert chain.source(9) is None
    assert chain.behind(9) == []


def test_who_is_behind_others_waits_longer_than_they_do_and_never_too_long() -> None:
    chain = Chain()
    chain.plan(range(100), 0.0)
    waits = [chain.patience(node, 60.0) for node in range(100)]
    assert waits[1:7] == pytest.approx([15.0, 18.0, 21.0, 24.0, 27.0, 30.0])
    assert max(waits) == 30.0


def test_if_one_is_gone_those_behind_it_follow_the_one_before_it() -> None:
    chain = Chain()
    chain.plan([1, 2, 3, 4], 0.0)
    assert chain.leave(2) == [3, 4]
    assert [chain.source(node) for node in (1, 2, 3, 4)] == [None, None, 1, 3]
    assert chain.leave(1) == [3, 4]
    assert [chain.source(node) for node in (3, 4)] == [None, 3]


def test_who_has_it_depends_on_nobody_and_others_still_depend_on_it() -> None:
    chain = Chain()
    chain.plan([1, 2, 3], 0.0)
    chain.landed(2)
    assert chain.behind(1) == []
    assert chain.leave(1) == []
    assert chain.leave(2) == [3]
    assert chain.source(3) is None


def test_two_between_which_nothing_comes_through_are_not_neighbours_for_a_while() -> None:
    chain = Chain()
    chain.plan([1, 2, 3], 0.0)
    assert chain.cut(2, 100.0) == [2, 3]
    assert [chain.source(node) for node in (1, 2, 3)] == [None, None, 2]
    chain.plan([1, 2, 3], 101.0)
    assert [chain.source(node) for node in (1, 2, 3)] == [None, 3, 1], "another order, in which they are not"
    chain.plan([1, 2], 101.0)
    assert chain.source(2) is None, "there is no other order"
    chain.plan([1, 2, 3], 100.0 + DISTRUST_S)
    assert [chain.source(node) for node in (1, 2, 3)] == [None, 1, 2]


def test_who_follows_a_gone_one_does_not_follow_one_from_which_nothing_comes() -> None:
    chain = Chain()
    chain.plan([1, 3], 0.0)
    chain.cut(3, 0.0)
    chain.plan([2, 1, 3], 1.0)
    chain.plan([1, 2, 3], 1.0)
    assert chain.leave(2) == [3]
    assert chain.source(3) is None


@settings(derandomize=True, max_examples=300)
@given(st.permutations(range(8)), st.integers(0, 8), events, st.permutations(range(8)))
def test_there_is_one_way_to_each_and_no_circle_whatever_breaks(
    order: list[int], size: int, broken: list[tuple[str, int]], next_order: list[int]
) -> None:
    chain = Chain()
    chain.plan(order[:size], 0.0)
    live, landed = set(order[:size]), set()
    for event, node in broken:
        if node not in live:
            continue
        before = chain.behind(node)
        if event == "landed":
            if chain.source(node) in landed or chain.source(node) is None:  # in order, or it would not be a chain
                chain.landed(node)
                landed.add(node)
        elif event == "leave":
            assert chain.leave(node) == before
            assert chain.source(node) is None
            live.discard(node)
        elif chain.source(node) is not None:
            assert chain.cut(node, 1.0) == [node, *before]
            assert chain.source(node) is None
        sources = {each: chain.source(each) for each in live if chain.source(each) is not None}
        assert len(set(sources.values())) == len(sources), "nobody passes it on to two"
        assert set(sources.values()) <= live
        for each in live:
            above = chain.behind(each)
            assert each not in above
            assert not set(above) & landed
    chain.plan(next_order, 2.0)
    for node in next_order:
        assert chain._is_trusted(chain.source(node), node)


@given(st.integers(1, 3 * 1024 * MEBI))
@settings(derandomize=True)
def test_the_pieces_are_small_and_leave_nothing_out(nbytes: int) -> None:
    sizes = chain_sizes(nbytes)
    assert sum(sizes) == nbytes
    assert max(sizes) <= 32 * MEBI
    assert all(size >= 8 * MEBI for size in sizes[:-1])


def test_a_gigabyte_is_cut_into_so_many() -> None:
    assert [size // MEBI for size in chain_sizes(1024 * MEBI)] == [32] * 32
    assert [size // MEBI for size in chain_sizes(64 * MEBI)] == [8] * 8
    assert chain_sizes(0) == []
