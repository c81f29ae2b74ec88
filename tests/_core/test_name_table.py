"""Names of groups, channels and promises: who has which, who waits, and what is remembered at each kind of end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlinf_async._core import frames, name_table
from rlinf_async._core.name_table import PENDING, ChannelNames, GroupNames, NameTable, PromiseNames
from rlinf_async.errors import ClosedError

A, B, C = (1, 1), (2, 1), (3, 1)
"""Lookups of processes 1, 2 and 3."""

ROSTER: dict[str, Any] = {"nodes": [1]}

Table = NameTable[Any]


def channels() -> ChannelNames:
    return ChannelNames(lambda endpoint: False)


KINDS: dict[str, Callable[[], Table]] = {"group": GroupNames, "channel": channels}


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest) -> Table:
    return KINDS[request.param]()


def made(table: Table, name: str = "x", owner: int = 1, roster: Any = None) -> int:
    """The number of a name that is published."""
    number = table.reserve(name, owner)
    table.publish(name, number, owner, ROSTER if roster is None else roster)
    return number


# -- of each kind -----------------------------------------------------------------------------------------------------


def test_a_lookup_waits_for_a_name_and_is_told_whenever_it_came(table: Table) -> None:
    assert table.find(A, "late") is PENDING
    number = table.reserve("late", 1)
    assert table.find(B, "late") is table.find(C, "early") is PENDING
    assert (table.settle(), table.names()) == ([], [])
    assert table.publish("late", number, 1, ROSTER) is None
    assert table.settle() == [(A, ROSTER), (B, ROSTER)]
    assert table.settle() == []
    assert table.find(A, "late") == ROSTER
    assert table.names() == ["late"]


def test_a_number_rises_by_one_and_is_used_once(table: Table) -> None:
    numbers = []
    for owner in (1, 2, 1):
        numbers.append(made(table, owner=owner))
        assert table.release(numbers[-1], owner)
    assert numbers == [1, 2, 3]


def test_only_its_owner_publishes_what_it_has_reserved_and_only_once(table: Table) -> None:
    number = table.reserve("x", 1)
    for name, which, owner in (("x", number, 2), ("y", number, 1), ("x", number + 1, 1)):
        with pytest.raises(KeyError, match=f"'{name}' .number {which}. is not reserved by the process"):
            table.publish(name, which, owner, ROSTER)
    table.publish("x", number, 1, ROSTER)
    with pytest.raises(KeyError):
        table.publish("x", number, 1, ROSTER)


def test_who_has_the_number_of_a_released_name_cannot_touch_the_next_one(table: Table) -> None:
    stale = made(table)
    assert table.release(stale, 1)
    successor = made(table)
    assert not table.release(stale, 1)
    with pytest.raises(KeyError):
        table.publish("x", stale, 1, {"nodes": []})
    assert table.find(A, "x") == ROSTER
    assert table.release(successor, 1)


def test_a_name_that_was_closed_is_not_waited_for_until_there_is_another_one(table: Table) -> None:
    table.release(made(table), 1)
    with pytest.raises(ClosedError, match=f"{table.kind} 'x' is closed; a new one of that name is found once it is"):
        table.find(A, "x")
    assert not table._lookups
    made(table, owner=2)
    assert table.find(A, "x") == ROSTER
    table.drop_owner(2)
    with pytest.raises(ClosedError):
        table.find(A, "x")


def test_a_name_that_was_never_published_is_waited_for_after_its_release(table: Table) -> None:
    assert table.find(A, "x") is PENDING
    assert table.release(table.reserve("x", 1), 1)
    assert table.find(B, "x") is PENDING
    assert table.settle() == []
    made(table)
    assert table.settle() == [(A, ROSTER), (B, ROSTER)]


def test_a_process_that_dies_between_reserve_and_publish_leaves_nothing(table: Table) -> None:
    number = table.reserve("x", 1)
    table.drop_client(1)
    assert [*table.entries, *table.named, *table.clients()] == []
    with pytest.raises(KeyError):
        table.publish("x", number, 1, ROSTER)


def test_nothing_is_kept_for_a_process_that_is_gone(table: Table) -> None:
    made(table, owner=1)
    for waiter in (A, B, (2, 2)):
        table.find(waiter, "y")
    assert table.clients() == {1, 2}
    table.drop_client(2)
    assert table.clients() == {1}
    table.drop_client(1)
    table.drop_owner(1)
    assert not table.clients()


def test_a_lookup_that_was_cancelled_is_not_told(table: Table) -> None:
    for waiter in (A, B):
        table.find(waiter, "x")
    for waiter in (A, C):
        table.cancel(waiter)
    made(table)
    assert table.settle() == [(B, ROSTER)]


def test_only_the_last_closed_names_are_remembered(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_table, "MAX_CLOSED_NAMES", 2)
    for name in "abac":  # "a" is closed anew, and behind "b"
        table.release(made(table, name), 1)
    for name in "ac":
        with pytest.raises(ClosedError):
            table.find(A, name)
    assert table.find(A, "b") is PENDING


# -- groups -----------------------------------------------------------------------------------------------------------


def rank(endpoint: int, *, supervised: bool = True) -> dict[str, Any]:
    return {"endpoint": endpoint, "supervised": supervised}


@pytest.fixture
def groups() -> GroupNames:
    """Group "x" of process 1 with ranks that come back, 10 and 11."""
    groups = GroupNames()
    made(groups, "x", 1, [rank(10), rank(11)])
    return groups


def test_a_group_has_its_name_from_when_it_is_reserved_until_its_owner_releases_it_or_dies() -> None:
    groups = GroupNames()
    number = groups.reserve("x", 1)
    for _ in range(2):
        with pytest.raises(ValueError, match="a group named 'x' exists already: close it first, or give this one ano"):
            groups.reserve("x", 2)
        assert not groups.release(number, 2)
        if groups.entries[number].roster is None:
            groups.publish("x", number, 1, [])
    assert groups.release(number, 1)
    assert groups.reserve("x", 2)
    groups.drop_client(2)
    assert groups.reserve("x", 3)


def test_any_rank_of_a_group_that_is_being_launched_is_waited_for() -> None:
    groups = GroupNames()
    groups.reserve("x", 1)
    assert [groups.find((process, 1), "x", process) for process in range(3)] == [PENDING] * 3


def test_a_rank_of_a_group_whose_ranks_do_not_come_back_is_not_waited_for() -> None:
    groups = GroupNames()
    made(groups, roster=[rank(10, supervised=False)])
    assert groups.find(A, "x", 0, after=10) == [rank(10, supervised=False)]
    assert not groups.comes_back(10)


def test_a_lookup_after_a_ranks_end_waits_for_its_next_endpoint(groups: GroupNames) -> None:
    assert groups.find(A, "x", 1, after=11) is groups.find(B, "x", 0, after=10) is PENDING
    assert groups.find(C, "x", 1) == groups.find(C, "x", 2, after=11) == [rank(10), rank(11)]
    assert groups.comes_back(11)
    groups.replace(1, 1, 1, 11, rank(21))
    assert groups.settle() == [(A, [rank(10), rank(21)])]
    assert groups.find(C, "x", 1, after=11) == [rank(10), rank(21)]
    assert not groups.comes_back(11)
    groups.replace(1, 1, 0, 10, rank(20))
    assert groups.settle() == [(B, [rank(20), rank(21)])]


def test_who_waits_for_a_rank_that_does_not_come_back_hears_so_and_so_does_who_comes_later(groups: GroupNames) -> None:
    assert groups.find(A, "x", 1, after=11) is PENDING
    groups.replace(1, 1, 1, 11, None)
    assert groups.settle() == [(A, [rank(10), rank(11)])]
    assert groups.find(B, "x", 1, after=11) == [rank(10), rank(11)]
    assert not groups.comes_back(11)
    groups.replace(1, 1, 1, 11, rank(21))  # by hand, after all
    assert groups.find(B, "x", 1, after=21) is PENDING


def test_only_the_owner_replaces_ranks_that_there_are(groups: GroupNames) -> None:
    groups.reserve("y", 1)
    for number, owner, which in ((1, 2, 1), (1, 1, 2), (1, 1, -1), (2, 1, 0), (3, 1, 0)):
        with pytest.raises(KeyError, match=f"no group of number {number} with a rank {which}"):
            groups.replace(number, owner, which, 11, rank(21))


@pytest.mark.parametrize("end", ["release", "death"])
def test_who_waits_for_a_rank_of_a_group_that_is_closed_is_told(groups: GroupNames, end: str) -> None:
    for waiter, name, after in ((B, "x", 11), (C, "y", 0)):
        assert groups.find(waiter, name, 1, after) is PENDING
    assert groups.settle() == []
    if end == "release":
        groups.release(1, 1)
    else:
        groups.drop_client(1)
    ((waiter, error),) = groups.settle()
    assert (waiter, type(error)) == (B, ClosedError)
    assert str(error).startswith("group 'x' is closed")
    groups.reserve("x", 1)
    with pytest.raises(ClosedError, match="group 'x' was closed, or has left"):
        groups.find(A, "x", 1, after=11)


def test_a_group_whose_members_join_is_published_while_all_are_there_and_one_member_as_soon_as_it_is() -> None:
    groups = GroupNames()
    groups.find(A, "x", 1)
    groups.find(B, "x")
    groups.join("x", 1, 2, 7, "one")
    assert groups.settle() == [(A, [None, "one"])]
    assert groups.find(C, "x", 2) == [None, "one"], "there will be no such rank"
    assert (groups.rank_of("x", 1), groups.rank_of("x", 0), groups.names()) == ("one", None, [])
    groups.join("x", 0, 2, 6, "zero")
    assert groups.settle() == [(B, ["zero", "one"])]
    assert (groups.names(), groups.clients()) == (["x"], {6, 7})
    groups.drop_client(7)
    assert groups.find(C, "x") is PENDING
    assert (groups.rank_of("x", 0), groups.rank_of("x", 1)) == ("zero", None)
    groups.drop_client(6)
    assert not groups.entries
    assert groups.find(C, "x") is PENDING, "others may join"


@pytest.mark.parametrize(
    ("name", "member", "size", "why"),
    [
        ("x", 2, 2, "'x' has 2 members: there is no rank 2"),
        ("x", 0, 1, "a group named 'x' exists already"),
        ("y", 1, 3, "'y' has 2 members, as others say, and not 3"),
        ("y", 0, 2, "rank 0 of 'y' is there already"),
    ],
)
def test_a_member_that_does_not_fit_cannot_join(
    groups: GroupNames, name: str, member: int, size: int, why: str
) -> None:
    groups.join("y", 0, 2, 7, "zero")
    with pytest.raises(ValueError, match=why):
        groups.join(name, member, size, 8, "other")


def test_a_closed_name_that_members_join_is_waited_for_again(groups: GroupNames) -> None:
    groups.release(1, 1)
    groups.join("x", 0, 2, 7, "member")
    assert groups.find(A, "x") is PENDING
    groups.drop_client(7)
    assert groups.find(A, "x") is PENDING


# -- channels ---------------------------------------------------------------------------------------------------------


def test_a_channels_name_is_the_firsts_that_publishes_it_and_anybody_frees_it() -> None:
    table = channels()
    first, second = table.reserve("x", 1), table.reserve("x", 2)
    assert table.publish("x", second, 2, ROSTER) is None
    assert table.publish("x", first, 1, {"nodes": [0]}) == ROSTER
    assert not table.release(first, 1), "it has come to nothing"
    assert table.release(second, 3)
    assert not table.release(second, 3)


@pytest.mark.parametrize("roster", [None, [], {}, {"nodes": 1}, {"nodes": ["1"]}, {"nodes": [True]}], ids=repr)
def test_a_channels_roster_has_nodes(roster: Any) -> None:
    table = channels()
    with pytest.raises(ValueError, match="a channel's roster has nodes, got"):
        table.publish("x", table.reserve("x", 1), 1, roster)


def test_a_closed_channel_is_known_by_its_number_until_nothing_is_left_of_it_anywhere() -> None:
    table = channels()
    number = made(table, roster={"nodes": [0, 1]})
    assert table.pin(number, b"k", 1) == table.pin(number, b"k", 0) == 1
    table.release(number, 1)
    assert table.pin(number, b"k", 0) == 1, "what is there can be got"
    assert table.pin(number, b"l", 0) is None, "nothing can be there"
    table.end(number, 1)
    assert number in table.entries
    table.end(number, 0)
    assert table.pin(number, b"k", 0) is None
    assert not table.entries


def test_a_channel_whose_queues_or_whose_owner_are_gone_has_no_name_any_more() -> None:
    table = channels()
    table.end(made(table, "queues"), 1)
    made(table, "owner")
    table.drop_owner(1)
    assert table.names() == []
    number = made(table, "lost")
    table.lose_node(1)
    assert table.names() == ["lost"], "who connects hears there of the node"
    table.release(number, 1)
    assert not table.entries
    made(table, "left", roster={"nodes": [1]})
    table.release(number + 1, 1)
    table.reserve("new", 1)
    table.lose_node(1)
    assert list(table.entries) == [number + 2]


def test_nothing_is_awaited_of_a_node_that_was_lost_before_the_channel_had_its_name() -> None:
    table = ChannelNames({frames.endpoint(1, 0)}.__contains__)
    number = made(table, roster={"nodes": [0, 1]})
    table.release(number, 1)
    table.end(number, 0)
    assert not table.entries


def test_an_experience_is_called_so_when_it_is_closed() -> None:
    table = channels()
    table.release(made(table, roster={**ROSTER, "experience": {}}), 1)
    with pytest.raises(ClosedError, match="experience 'x' is closed"):
        table.find(A, "x")


# -- promises ---------------------------------------------------------------------------------------------------------


class Promises:
    """Promises of processes, of which some are gone."""

    def __init__(self) -> None:
        self.gone: set[int] = set()
        self.channels = ChannelNames(self.gone.__contains__)
        self.table = PromiseNames(self.channels, self.gone.__contains__)

    def die(self, gone: int) -> None:
        self.gone.add(gone)
        self.table.drop_client(gone)


@pytest.fixture
def promises() -> Promises:
    return Promises()


def test_a_promise_is_the_channel_that_its_maker_publishes(promises: Promises) -> None:
    table = promises.table
    assert table.find(A, "1.2") is table.find(B, "1.1") is PENDING
    number = made(promises.channels)
    table.publish("1.2", number, 1, "")
    assert table.settle() == [(A, ROSTER)]
    assert table.find(C, "1.2") == ROSTER
    with pytest.raises(ValueError, match=r"promise '1\.1' is another process's"):
        table.publish("1.1", number, 2, "")
    with pytest.raises(ValueError, match=r"nobody reserves a promise, such as '1\.1'"):
        table.reserve("1.1", 1)


def test_a_promise_of_a_channel_that_has_ended_is_none_of_another_one_of_its_name(promises: Promises) -> None:
    number = made(promises.channels)
    promises.table.publish("1.1", number, 1, "")
    promises.channels.release(number, 1)
    assert promises.table.find(A, "1.1") == ROSTER, "it may have something yet"
    promises.channels.end(number, 1)
    made(promises.channels)
    assert promises.table.find(A, "1.1") is None
    assert not promises.channels.kept


def test_a_promise_that_comes_to_nothing_is_told_early_and_late(promises: Promises) -> None:
    table = promises.table
    for waiter, name in ((A, "1.1"), (B, "1.2"), (C, "1.3")):
        table.find(waiter, name)
    for name, number, why in (("1.3", 0, "node 1 is lost"), ("1.1", 0, ""), ("1.2", 77, ""), ("1.3", 0, "again")):
        table.publish(name, number, 1, why)
    assert table.settle() == [(A, None), (B, None), (C, "node 1 is lost")]
    assert table.find(A, "1.3") == "node 1 is lost"
    promises.die(1)
    assert table.find(B, "1.3") is None
    table.publish("1.4", 0, 1, "said last")
    assert [*table._failed, *table._published] == []


def test_the_promises_of_a_process_that_is_gone_are_broken_but_for_those_that_were_kept(promises: Promises) -> None:
    table = promises.table
    table.publish("1.1", made(promises.channels, owner=2), 1, "")
    assert table.find(B, "1.2") is table.find(C, "5.4") is PENDING
    assert table.clients() == {1, 2, 3, 5}
    promises.die(3)
    assert table.clients() == {1, 2}
    promises.die(1)
    assert table.settle() == [(B, None)]
    assert table.find(B, "1.1") == ROSTER
    assert table.find(B, "1.3") is None
    assert not table.clients()


@pytest.mark.parametrize("name", ["", "1", "1.", ".1", "x.y", "1.2.3"])
def test_what_is_no_promise_is_refused(promises: Promises, name: str) -> None:
    with pytest.raises(ValueError, match=f"a promise is its maker's endpoint and a number, got '{name}'"):
        promises.table.find(A, name)
