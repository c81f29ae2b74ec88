"""The window of puts that a process has under way."""

from __future__ import annotations

import itertools

import pytest

from rlinf_async._channels.state.put_window import PutWindow, cost
from rlinf_async._channels.state.queue import Queue
from rlinf_async._core import codec, pool


class Put:
    number = 0


def window(size: int) -> PutWindow[Put]:
    made: PutWindow[Put] = PutWindow(32 * size, itertools.count(1))
    assert made.size == size
    return made


def test_puts_enter_until_it_is_full_and_then_wait_in_order() -> None:
    puts, mine = [Put() for _ in range(5)], window(10)
    assert [mine.enter(put, 6) for put in puts] == [True, True, False, False, False]
    assert mine.next() is None
    mine.free(6)
    assert mine.next() is puts[2]
    assert mine.next() is None
    assert mine.withdraw(puts[3])
    assert not mine.withdraw(puts[2])
    mine.free(12)
    assert mine.next() is puts[4]
    assert [put.number for put in puts] == [1, 2, 3, 0, 4]


def test_one_may_be_larger_than_all_of_it() -> None:
    mine = window(10)
    assert mine.enter(Put(), 1000)
    assert not mine.enter(Put(), 1)


def test_a_put_that_must_not_wait_leaves_behind_those_that_do() -> None:
    first, second, third, mine = Put(), Put(), Put(), window(10)
    assert mine.force(first, 10) == ([first], True)
    mine.enter(second, 1)
    assert mine.force(third, 1) == ([second, third], False)
    mine.enter(first, 1)
    assert mine.end() == [first]
    assert not mine.waiting


@pytest.mark.parametrize("item", [None, "text", bytes(70_000), bytes(1_000_000)])
def test_an_item_costs_at_least_its_size(item: object) -> None:
    encoded = codec.encode(item)
    assert cost(encoded.nbytes) >= encoded.nbytes + 256


def test_what_is_held_stays_within_12_tenths_of_max_bytes_in_the_segments_that_hold_it() -> None:
    """Items a little larger than a power of two, which lie in the segments with most room left over."""
    limit, item = 48 << 20, (1 << 20) + 200
    queue, held = Queue(max_bytes=limit), 0
    for producer in range(1, 4):
        mine: PutWindow[Put] = PutWindow(limit, itertools.count(1))
        put = Put()
        while mine.enter(put, cost(item)):
            if queue.put(producer, put.number, b"key", 0, item, b"body"):
                mine.free(cost(item))
            put, held = Put(), held + 1
    assert held >= 48
    assert held * pool._rounded(item) <= 1.2 * limit
