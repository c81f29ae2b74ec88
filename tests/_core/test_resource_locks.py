"""Device locks and port leases: order, holders' deaths."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from rlinf_async._core.resource_locks import DeviceLocks, PortLeases, Ticket, parse_port_range, port_range


def test_a_device_is_held_by_one_holder_and_goes_to_the_next_in_order() -> None:
    locks = DeviceLocks()
    assert locks.take(Ticket(1, 1), "a", [0, 1])
    assert not locks.take(Ticket(2, 1), "b", [1])
    assert not locks.take(Ticket(3, 1), "c", [0])
    assert locks.release(Ticket(1, 1)) == [Ticket(2, 1), Ticket(3, 1)]


def test_a_holder_has_its_devices_until_it_has_given_them_back_as_often_as_it_took_them() -> None:
    locks = DeviceLocks()
    assert locks.take(Ticket(1, 1), "a", [0])
    assert not locks.take(Ticket(2, 1), "b", [0])
    assert locks.take(Ticket(1, 2), "a", [0])  # past whoever waits: it has it already
    assert locks.release(Ticket(1, 1)) == []
    assert locks.release(Ticket(1, 2)) == [Ticket(2, 1)]


def test_a_holder_that_asked_before_it_was_one_has_its_devices_again_past_whoever_waits_for_them() -> None:
    locks = DeviceLocks()
    assert locks.take(Ticket(1, 1), "a", [0])
    assert not locks.take(Ticket(2, 1), "b", [0])
    assert not locks.take(Ticket(3, 1), "c", [0])
    assert not locks.take(Ticket(2, 2), "b", [0])
    assert locks.release(Ticket(1, 1)) == [Ticket(2, 1), Ticket(2, 2)]


def test_who_wants_several_devices_is_not_overtaken_by_those_who_want_one_of_them() -> None:
    locks = DeviceLocks()
    assert locks.take(Ticket(1, 1), "a", [0])
    assert not locks.take(Ticket(2, 1), "b", [0, 1])
    assert not locks.take(Ticket(3, 1), "c", [1])  # free, but wanted before
    assert locks.take(Ticket(4, 1), "d", [2])
    assert locks.names(Ticket(3, 1)) == ["b"]
    assert locks.names(Ticket(2, 1)) == ["a"]
    assert locks.release(Ticket(2, 1)) == [Ticket(3, 1)]  # its place is given up, and nobody is in the way any more


def test_what_a_dead_holder_had_and_wanted_is_free() -> None:
    locks = DeviceLocks()
    locks.take(Ticket(1, 1), "a", [0])
    locks.take(Ticket(1, 2), "a", [0])
    locks.take(Ticket(2, 1), "b", [0])
    locks.take(Ticket(3, 1), "c", [0])
    locks.take(Ticket(1, 3), "a", [1, 0])
    assert locks.drop(2) == []
    assert locks.drop(1) == [Ticket(3, 1)]
    assert locks.holders() == {3}
    assert locks.drop(3) == []
    assert locks == DeviceLocks()


def test_a_ticket_is_good_for_one_acquisition() -> None:
    locks = DeviceLocks()
    locks.take(Ticket(1, 1), "a", [0])
    with pytest.raises(ValueError, match="has been used"):
        locks.take(Ticket(1, 1), "a", [0])


_DEVICES = st.sets(st.integers(0, 3), max_size=3)
_STEPS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["take", "give back", "drop"]), _DEVICES), max_size=40)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(_STEPS)
def test_no_device_has_two_holders_nobody_is_forgotten_and_nobody_overtakes(
    steps: list[tuple[int, str, set[int]]],
) -> None:
    locks = DeviceLocks()
    granted: list[Ticket] = []
    taken: dict[Ticket, set[int]] = {}
    for number, (holder, what, devices) in enumerate(steps):
        if what == "take":
            taken[Ticket(holder, number)] = devices
            if locks.take(Ticket(holder, number), str(holder), devices):
                granted.append(Ticket(holder, number))
        elif what == "drop":
            taken = {ticket: request for ticket, request in taken.items() if ticket.holder != holder}
            granted += locks.drop(holder)
        else:
            mine = [ticket for ticket in taken if ticket.holder == holder]
            if mine:
                del taken[mine[0]]
                granted += locks.release(mine[0])
        assert set(taken) == {*locks.held, *locks.waiting}
        owners = {(device, ticket.holder) for ticket in locks.held for device in taken[ticket]}
        assert len({device for device, _ in owners}) == len(owners)  # one holder per device
        for position, ticket in enumerate(locks.waiting):
            assert locks.names(ticket) or any(
                taken[ticket] & taken[before] for before in list(locks.waiting)[:position]
            ), f"{ticket} waits for nothing"
    assert len(granted) == len(set(granted))
    for holder in range(4):
        locks.drop(holder)
    assert locks == DeviceLocks()


def test_a_port_is_promised_once_and_comes_back_with_its_owner() -> None:
    leases = PortLeases()
    assert leases.lease(5000, 1)
    assert not leases.lease(5000, 2)
    assert not leases.lease(5000, 1)
    assert leases.lease(5001, 1)
    assert leases.lease(5002, 2)
    assert leases.drop(1) == [5000, 5001]
    assert leases.lease(5000, 2)


@pytest.mark.parametrize(
    ("ephemeral", "most", "expected"),
    [
        ((32768, 60999), None, range(10000, 32768)),
        ((32768, 60999), 20000, range(10000, 20001)),
        ((32768, 60999), 8000, range(1024, 8001)),
        ((1024, 65535), None, range(1024, 65536)),
    ],
)
def test_ports_are_chosen_where_the_kernel_gives_none_by_chance(
    ephemeral: tuple[int, int], most: int | None, expected: range
) -> None:
    assert port_range(ephemeral, most) == expected


@pytest.mark.parametrize("most", [1023, 0, 65536])
def test_a_highest_port_that_is_none_is_an_error(most: int) -> None:
    with pytest.raises(ValueError, match="max_port_num must be from 1024 to 65535"):
        port_range((32768, 60999), most)


def test_a_range_of_ports_is_its_first_and_last() -> None:
    assert parse_port_range("20000-20099") == (20000, 20099)
    assert parse_port_range(" 2000 - 2000 ") == (2000, 2000)


@pytest.mark.parametrize("text", ["", "20000", "20000-", "-20000", "a-b", "20000:20001", "20000-20001-20002", "٢٠-٣٠"])
def test_what_is_no_range_of_ports_is_shown(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text!r} is no range of ports$"):
        parse_port_range(text)


@pytest.mark.parametrize("text", ["20001-20000", "80-90", "60000-65536"])
def test_a_range_of_ports_lies_where_an_ordinary_process_may_listen(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is no range of ports from 1024 to 65535"):
        parse_port_range(text)
