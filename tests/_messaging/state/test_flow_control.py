"""Flow control of a message stream: window, announcements, returned room."""

from __future__ import annotations

import pytest

from rlinf_async._messaging.state.flow_control import MESSAGE_OVERHEAD_BYTES, SendWindow, WindowEntry


def test_messages_leave_until_there_is_no_room() -> None:
    window = SendWindow([7], room=1000)
    assert window.add(WindowEntry(500)).left
    assert not window.add(WindowEntry(500)).left
    assert window.outstanding == 500 + MESSAGE_OVERHEAD_BYTES


def test_64_mib_of_tensors_are_accepted_in_one_message_or_in_many() -> None:
    assert SendWindow([7]).add(WindowEntry((64 << 20) + 4096)).left
    many = SendWindow([7])
    assert all(many.add(WindowEntry((1 << 20) + 4096)).left for _ in range(64))
    assert not many.add(WindowEntry(2 << 20)).left


def test_what_waits_for_room_leaves_in_order_when_there_is_some() -> None:
    window = SendWindow([7], room=1000)
    first = window.add(WindowEntry(800))
    waiting = [window.add(WindowEntry(300)) for _ in range(3)]
    assert [each.left for each in waiting] == [False] * 3
    leaving = window.received(7, first.charge)
    assert leaving == waiting[:2]
    assert all(each.left and each.charge == 300 + MESSAGE_OVERHEAD_BYTES for each in leaving)


def test_a_small_message_does_not_overtake_those_that_wait_for_room() -> None:
    window = SendWindow([7], room=1000)
    window.add(WindowEntry(600))
    window.add(WindowEntry(500))
    assert not window.add(WindowEntry(0)).left


def test_what_is_larger_than_all_room_leaves_when_it_is_asked_for_and_holds_nobody_up() -> None:
    window = SendWindow([7], room=1000)
    giant = window.add(WindowEntry(5000))
    assert not giant.left
    assert window.add(WindowEntry(10)).left
    assert window.granted(7, giant.number) is giant
    assert giant.charge == 0
    assert window.granted(7, giant.number) is None


def test_what_is_asked_for_does_not_wait_for_room() -> None:
    window = SendWindow([7], room=1000)
    window.add(WindowEntry(800))
    waits = window.add(WindowEntry(500))
    assert window.granted(7, waits.number) is waits
    assert window.received(7, 928) == []
    assert window.outstanding == 0


def test_several_receivers_all_have_to_receive_and_to_ask() -> None:
    window = SendWindow([7, 8], room=1000)
    first = window.add(WindowEntry(800))
    waits = window.add(WindowEntry(500))
    giant = window.add(WindowEntry(5000))
    assert window.received(7, first.charge) == []
    assert window.received(8, first.charge) == [waits]
    assert window.granted(8, giant.number) is None
    assert window.granted(8, giant.number) is None
    assert window.granted(7, giant.number) is giant


def test_what_is_withdrawn_makes_way() -> None:
    window = SendWindow([7], room=1000)
    first = window.add(WindowEntry(800))
    large, small = window.add(WindowEntry(700)), window.add(WindowEntry(100))
    assert window.withdraw(large.number)
    assert not window.withdraw(first.number)
    assert window.received(7, first.charge) == [small]
    assert window.granted(7, large.number) is None


def test_what_could_not_be_sent_takes_no_room() -> None:
    window = SendWindow([7], room=1000)
    window.undo(window.add(WindowEntry(800)))
    assert window.outstanding == 0


def test_at_the_end_nothing_waits() -> None:
    window = SendWindow([7], room=1000)
    window.add(WindowEntry(800))
    waiting = [window.add(WindowEntry(800)), window.add(WindowEntry(8000))]
    assert window.fail() == waiting
    assert window.received(7, 928) == []


def test_receivers_tell_what_they_have_received_in_all() -> None:
    window = SendWindow([7], room=1000)
    first, second = window.add(WindowEntry(100)), window.add(WindowEntry(100))
    window.received(7, first.charge)
    assert window.outstanding == second.charge
    window.received(7, first.charge + second.charge)
    assert window.outstanding == 0


def test_an_old_total_does_not_take_room_away() -> None:
    window = SendWindow([7], room=1000)
    first = window.add(WindowEntry(500))
    window.received(7, first.charge)
    window.received(7, 0)
    assert window.outstanding == 0


@pytest.mark.parametrize("left", [True, False])
def test_a_departure_says_what_it_is(left: bool) -> None:
    entry = SendWindow([7]).add(WindowEntry(100 if left else 1 << 30))
    assert ("left" if left else "announced") in repr(entry)
