"""Flow control of a message stream: window, announcements, returned room."""

from __future__ import annotations

import pytest

from rlinf_async._messaging.state.flow_control import MESSAGE_OVERHEAD_BYTES, Departures


def test_messages_leave_until_there_is_no_room() -> None:
    departures = Departures([7], room=1000)
    assert departures.add("a", 500).left
    assert not departures.add("b", 500).left
    assert departures.outstanding == 500 + MESSAGE_OVERHEAD_BYTES


def test_64_mib_of_tensors_are_accepted_in_one_message_or_in_many() -> None:
    assert Departures([7]).add("all", (64 << 20) + 4096).left
    many = Departures([7])
    assert all(many.add("part", (1 << 20) + 4096).left for _ in range(64))
    assert not many.add("one more", 2 << 20).left


def test_what_waits_for_room_leaves_in_order_when_there_is_some() -> None:
    departures = Departures([7], room=1000)
    first = departures.add("first", 800)
    waiting = [departures.add(name, 300) for name in "abc"]
    assert [each.left for each in waiting] == [False] * 3
    leaving = departures.received(7, first.charge)
    assert [each.what for each in leaving] == ["a", "b"]
    assert all(each.left and each.charge == 300 + MESSAGE_OVERHEAD_BYTES for each in leaving)


def test_a_small_message_does_not_overtake_those_that_wait_for_room() -> None:
    departures = Departures([7], room=1000)
    departures.add("first", 600)
    departures.add("waits", 500)
    assert not departures.add("tiny", 0).left


def test_what_is_larger_than_all_room_leaves_when_it_is_asked_for_and_holds_nobody_up() -> None:
    departures = Departures([7], room=1000)
    giant = departures.add("giant", 5000)
    assert not giant.left
    assert departures.add("small", 10).left
    assert departures.granted(7, giant.number) is giant
    assert giant.charge == 0
    assert departures.granted(7, giant.number) is None


def test_what_is_asked_for_does_not_wait_for_room() -> None:
    departures = Departures([7], room=1000)
    departures.add("first", 800)
    waits = departures.add("waits", 500)
    assert departures.granted(7, waits.number) is waits
    assert departures.received(7, 928) == []
    assert departures.outstanding == 0


def test_several_receivers_all_have_to_receive_and_to_ask() -> None:
    departures = Departures([7, 8], room=1000)
    first = departures.add("first", 800)
    waits = departures.add("waits", 500)
    giant = departures.add("giant", 5000)
    assert departures.received(7, first.charge) == []
    assert departures.received(8, first.charge) == [waits]
    assert departures.granted(8, giant.number) is None
    assert departures.granted(8, giant.number) is None
    assert departures.granted(7, giant.number) is giant


def test_what_is_withdrawn_makes_way() -> None:
    departures = Departures([7], room=1000)
    first = departures.add("first", 800)
    large, small = departures.add("large", 700), departures.add("small", 100)
    assert departures.withdraw(large.number)
    assert not departures.withdraw(first.number)
    assert departures.received(7, first.charge) == [small]
    assert departures.granted(7, large.number) is None


def test_what_could_not_be_sent_takes_no_room() -> None:
    departures = Departures([7], room=1000)
    departures.undo(departures.add("broken", 800))
    assert departures.outstanding == 0


def test_at_the_end_nothing_waits() -> None:
    departures = Departures([7], room=1000)
    departures.add("first", 800)
    waiting = [departures.add("a", 800), departures.add("b", 8000)]
    assert departures.fail() == waiting
    assert departures.received(7, 928) == []


def test_receivers_tell_what_they_have_received_in_all() -> None:
    departures = Departures([7], room=1000)
    first, second = departures.add("first", 100), departures.add("second", 100)
    departures.received(7, first.charge)
    assert departures.outstanding == second.charge
    departures.received(7, first.charge + second.charge)
    assert departures.outstanding == 0


def test_an_old_total_does_not_take_room_away() -> None:
    departures = Departures([7], room=1000)
    first = departures.add("first", 500)
    departures.received(7, first.charge)
    departures.received(7, 0)
    assert departures.outstanding == 0


@pytest.mark.parametrize("left", [True, False])
def test_a_departure_says_what_it_is(left: bool) -> None:
    departure = Departures([7]).add("it", 100 if left else 1 << 30)
    assert ("left" if left else "announced") in repr(departure)
