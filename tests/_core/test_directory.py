"""Directory of group names: registration, lookups that wait."""

from __future__ import annotations

import pytest

from rlinf_async._core.closed_names import MAX_CLOSED_NAMES, ClosedNames
from rlinf_async._core.directory import Directory
from rlinf_async.errors import ClosedError


def test_a_lookup_waits_for_a_name_and_is_told() -> None:
    directory = Directory()
    assert directory.lookup("late", "a") is None
    assert directory.lookup("late", "b") is None
    directory.reserve("late", 1)
    assert directory.lookup("late", "c") is None
    assert directory.publish("late", 1, ["roster"]) == ["a", "b", "c"]
    assert directory.lookup("late", "d") == ["roster"]
    assert directory.names() == ["late"]


def test_a_name_is_reserved_once_and_free_after_release() -> None:
    directory = Directory()
    assert directory.reserve("x", 1)
    assert not directory.reserve("x", 2)
    assert not directory.release("x", 2)
    assert directory.release("x", 1)
    assert directory.reserve("x", 2)


def test_only_its_owner_publishes_a_name() -> None:
    directory = Directory()
    directory.reserve("x", 1)
    with pytest.raises(KeyError):
        directory.publish("x", 2, [])
    with pytest.raises(KeyError):
        directory.publish("y", 1, [])


def test_what_a_dead_owner_had_is_free() -> None:
    directory = Directory()
    for name in "abc":
        directory.reserve(name, 1 if name != "b" else 2)
    assert directory.drop_owner(1) == ["a", "c"]
    assert directory.reserve("a", 3)
    assert not directory.reserve("b", 3)


def test_a_waiter_that_gave_up_is_not_told() -> None:
    directory = Directory()
    directory.lookup("x", "a")
    directory.lookup("x", "b")
    directory.forget_waiter("x", "a")
    directory.forget_waiter("x", "nobody")
    directory.reserve("x", 1)
    assert directory.publish("x", 1, []) == ["b"]
    assert directory.waiters == {}


def test_a_name_that_was_closed_is_not_waited_for_until_it_is_reserved_again() -> None:
    directory = Directory()
    directory.reserve("x", 1)
    directory.publish("x", 1, "roster")
    directory.release("x", 1)
    with pytest.raises(ClosedError, match="group 'x' is closed; a new one of that name is found once it is there"):
        directory.lookup("x", "waiter")
    assert directory.waiters == {}
    directory.reserve("x", 2)
    assert directory.lookup("x", "waiter") is None
    directory.publish("x", 2, "again")
    directory.drop_owner(2)
    with pytest.raises(ClosedError):
        directory.lookup("x", "waiter")
    directory.join("x", 0, 2, 7, "member")  # by the first of two members, which come by themselves
    assert directory.lookup("x", "waiter") is None


def test_a_name_that_was_never_published_or_is_joined_by_members_is_waited_for() -> None:
    directory = Directory()
    directory.reserve("x", 1)
    directory.release("x", 1)
    directory.join("y", 0, 1, 7, "member")
    directory.drop_owner(7)
    assert directory.lookup("x", "waiter") is None
    assert directory.lookup("y", "waiter") is None


def test_a_closed_name_that_members_join_is_waited_for_again() -> None:
    directory = Directory()
    directory.reserve("x", 1)
    directory.publish("x", 1, "roster")
    directory.release("x", 1)
    directory.join("x", 0, 1, 7, "member")
    directory.drop_owner(7)
    assert directory.lookup("x", "waiter") is None


def test_only_the_last_closed_names_are_remembered() -> None:
    closed = ClosedNames("group")
    for number in range(MAX_CLOSED_NAMES + 1):
        closed.add(str(number))
    assert len(closed) == MAX_CLOSED_NAMES
    closed.check("0")
    with pytest.raises(ClosedError):
        closed.check(str(MAX_CLOSED_NAMES))


# -- ranks that come back ---------------------------------------------------------------------------------------------


def entry(endpoint: int) -> dict[str, int]:
    return {"endpoint": endpoint}


def with_two_ranks() -> Directory:
    directory = Directory()
    directory.reserve("x", 1)
    directory.publish("x", 1, [entry(10), entry(11)], supervised=True)
    return directory


def test_a_rank_of_a_group_whose_ranks_do_not_come_back_is_not_waited_for() -> None:
    directory = Directory()
    directory.reserve("x", 1)
    directory.publish("x", 1, [entry(10), entry(11)])
    assert directory.lookup("x", "a", 1, after=11) == [entry(10), entry(11)]
    assert not directory.waiters


def test_a_lookup_after_a_ranks_end_waits_for_its_next_endpoint() -> None:
    directory = with_two_ranks()
    assert directory.lookup("x", "a", 1, after=11) is None
    assert directory.lookup("x", "b", 0, after=10) is None
    assert directory.lookup("x", "c", 1) is not None
    assert directory.replace("x", 1, 1, 11, entry(21)) == ["a"]
    assert directory.lookup("x", "d", 1, after=11) == [entry(10), entry(21)]
    assert list(directory.waiters["x"]) == ["b"]


def test_who_waits_for_a_rank_that_does_not_come_back_hears_so_and_so_does_who_comes_later() -> None:
    directory = with_two_ranks()
    assert directory.lookup("x", "a", 1, after=11) is None
    assert directory.replace("x", 1, 1, 11, None) == ["a"]
    assert directory.lookup("x", "b", 1, after=11) == [entry(10), entry(11)]
    assert directory.replace("x", 1, 1, 11, entry(21)) == []  # by hand, after all
    assert directory.lookup("x", "b", 1, after=21) is None


def test_only_the_owner_replaces_ranks_that_there_are() -> None:
    directory = with_two_ranks()
    for name, owner, rank in (("x", 2, 1), ("x", 1, 2), ("x", 1, -1), ("y", 1, 0)):
        with pytest.raises(KeyError):
            directory.replace(name, owner, rank, 11, entry(21))


def test_who_waits_for_a_rank_of_a_group_that_is_closed_is_told() -> None:
    directory = with_two_ranks()
    directory.lookup("x", "a", 1, after=11)
    directory.lookup("y", "b")
    assert directory.orphaned_waiters() == []
    directory.release("x", 1)
    assert directory.orphaned_waiters() == [("x", "a")]
    assert list(directory.waiters) == ["y"]
