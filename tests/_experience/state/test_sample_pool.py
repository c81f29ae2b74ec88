"""Groups, versions, staleness, deadlines and room of an experience's samples, claim by claim."""

from __future__ import annotations

from typing import Any

import pytest

from rlinf_async._experience.state.experience_options import ExperienceOptions
from rlinf_async._experience.state.ledger import DISCARDED, INCOMPLETE, STALE
from rlinf_async._experience.state.sample_pool import SampleGroup, SamplePool


def pool_of(**options: Any) -> SamplePool:
    return SamplePool(ExperienceOptions(**options))


def put(
    pool: SamplePool, body: str, name: str = "g", version: int = 0, key: bytes | None = None, now: float = 0
) -> None:
    pool.accept(pool.enter(key, name.encode(), version=version, nbytes=1, body=body, now=now))


def bodies(groups: list[SampleGroup] | None) -> list[list[Any]] | None:
    return None if groups is None else [[sample.body for sample in group.samples] for group in groups]


def test_a_group_is_taken_when_it_is_complete() -> None:
    pool = pool_of(group=2)
    put(pool, "a1", "a")
    put(pool, "b1", "b")
    assert pool.take(1, None) is None
    put(pool, "a2", "a")
    put(pool, "a3", "a")  # of the next group of this name
    assert bodies(pool.take(1, None)) == [["a1", "a2"]]
    assert pool.take(1, None) is None
    assert (pool.ledger().present, pool.ledger().leased, pool.lacking()) == (2, 2, (2, 2))


@pytest.mark.parametrize(("order", "expected"), [("oldest", "acdb"), ("newest", "bdca")])
def test_groups_are_taken_by_the_version_of_their_oldest_sample(order: Any, expected: str) -> None:
    pool = pool_of(order=order)
    for body, version in (("a", 1), ("b", 3), ("c", 2), ("d", 2)):
        put(pool, body, version=version)
    assert bodies(pool.take(4, None)) == [[body] for body in expected]


def test_deadlines_of_complete_groups_do_not_accumulate() -> None:
    pool = pool_of(group=2, group_timeout_s=5.0, short_groups="take")
    put(pool, "first", "open", now=1.0)
    for number in range(1000):
        put(pool, "a", str(number), now=2.0)
        put(pool, "b", str(number), now=2.0)
    assert len(pool._deadlines) < 100
    pool.expire(6.0)
    assert pool.lacking() == (0, 0)


def test_what_comes_back_has_its_place_again() -> None:
    pool = pool_of(maxsize=3)
    for body in "abc":
        put(pool, body)
    first = pool.take(2, None)
    assert first is not None
    pool.give_back(first)
    assert not pool.has_room(1)
    assert bodies(pool.take(3, None)) == [["a"], ["b"], ["c"]]
    assert [sample.redelivered for group in first for sample in group.samples] == [True, True]


def test_a_key_has_its_own_groups_and_those_of_all() -> None:
    pool = pool_of()
    put(pool, "all", version=2)
    put(pool, "own", version=1, key=b"1")
    put(pool, "other", version=0, key=b"2")
    assert pool.available(None) == 1
    assert bodies(pool.take(2, b"1")) == [["own"], ["all"]]


@pytest.mark.parametrize(("behind", "is_taken"), [(1, True), (2, False)])
def test_a_group_is_dropped_when_its_oldest_sample_is_too_stale(behind: int, is_taken: bool) -> None:
    pool = pool_of(group=2, max_staleness=1)
    put(pool, "old", version=5)
    put(pool, "new", version=6)
    pool.set_version(5 + behind)
    pool.drop_stale()
    assert (pool.take(1, None) is not None) is is_taken
    assert pool.ledger().dropped == ({} if is_taken else {STALE: 2})


def test_an_incomplete_group_that_is_too_stale_gives_its_room_up() -> None:
    pool = pool_of(group=2, max_staleness=0, maxsize=2)
    put(pool, "a1", "a", version=1)
    assert not pool.has_room(1)
    pool.set_version(2)
    pool.drop_stale()
    assert pool.has_room(1)
    assert pool.is_empty


@pytest.mark.parametrize(("short", "taken", "dropped"), [("take", [["a1"]], {}), ("drop", None, {INCOMPLETE: 1})])
def test_a_group_is_given_up_at_its_deadline(short: Any, taken: Any, dropped: dict[str, int]) -> None:
    pool = pool_of(group=2, group_timeout_s=5.0, short_groups=short)
    put(pool, "a1", "a", now=1.0)
    assert pool.next_deadline == 6.0
    pool.expire(5.9)
    assert pool.lacking() == (1, 1)
    pool.expire(6.0)
    assert bodies(pool.take(1, None)) == taken
    assert pool.ledger().dropped == dropped


def test_room_is_reserved_for_the_whole_group() -> None:
    pool = pool_of(group=3, maxsize=4, max_bytes=100)
    put(pool, "a1", "a")
    assert pool.is_open(None, b"a")
    assert not pool.has_room(1)
    assert pool.nbytes == 3
    put(pool, "a2", "a")
    put(pool, "a3", "a")
    taken = pool.take(1, None)
    assert taken is not None
    assert pool.has_room(32)
    assert not pool.has_room(33)  # leased samples take their bytes
    pool.confirm(taken)
    assert pool.has_room(33)


def test_samples_are_wanted_until_the_groups_ahead_fill_the_versions_in_which_they_are_fresh() -> None:
    pool = pool_of(max_staleness=1)
    assert pool.wants()
    pool.set_version(1)
    assert pool.wants()  # nobody knows how many the trainer takes
    for body in "abcd":
        put(pool, body, version=1)
    taken = pool.take(2, None)
    assert taken is not None
    assert not pool.wants()  # two groups are for this version and two for the next, which is the last one
    pool.confirm(taken)
    pool.set_version(2)
    assert pool.wants()


def test_a_sample_that_could_not_be_made_safe_leaves_its_group_open() -> None:
    pool = pool_of(group=2, maxsize=2)
    first = pool.enter(None, b"a", version=0, nbytes=1, body="lost", now=0.0)
    put(pool, "a2", "a")
    pool.withdraw(first)
    assert pool.lacking() == (1, 1)
    put(pool, "a3", "a")
    assert bodies(pool.take(1, None)) == [["a2", "a3"]]
    assert pool.ledger().put == 2


def test_a_close_gives_up_incomplete_groups_and_a_discard_drops_what_comes_back() -> None:
    pool = pool_of(group=2)
    for body in ("a1", "a2", "b1"):
        put(pool, body, body[0])
    taken = pool.take(1, None)
    assert taken is not None
    pool.close(discard=True)
    pool.give_back(taken)
    assert pool.ledger().dropped == {INCOMPLETE: 1, DISCARDED: 2}
    assert pool.ledger().is_closed


def test_another_life_goes_on_with_the_groups_of_the_first() -> None:
    options = ExperienceOptions(group=3, short_groups="take")
    pool = SamplePool(options)
    pool.count_earlier(7, 10, {STALE: 2})
    rows: list[Any] = [
        (4, 1, None, b"a", 5, 1, "given up"),
        (5, 2, None, b"b", 6, 1, "b1"),
        (8, 3, None, b"a", 6, 1, "a1"),
        (9, 2, None, b"b", 6, 1, "b2"),
    ]
    pool.restore(rows, 0.0)
    assert bodies(pool.take(1, None)) == [["given up"]]
    put(pool, "b3", "b", version=7)
    assert bodies(pool.take(1, None)) == [["b1", "b2", "b3"]]
    ledger = pool.ledger()
    assert (ledger.put, ledger.taken, ledger.dropped, ledger.version) == (17, 10, {STALE: 2}, 7)
    assert ledger.is_closed
