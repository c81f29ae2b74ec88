"""Numbers of a link's messages: connections break anywhere; nothing is lost, nothing comes twice, order holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from rlinf_async._core.link_messages import ACK_BYTES, ACK_MESSAGES, IncomingMessages, OutgoingMessages


def sent(*parts: bytes) -> OutgoingMessages:
    outgoing = OutgoingMessages()
    for part in parts:
        outgoing.add(part)
    return outgoing


def test_parts_leave_together_up_to_a_limit_and_a_larger_one_alone() -> None:
    outgoing = sent(b"aa", b"bb", b"cc", b"d" * 9, b"e")
    assert [outgoing.take(4) for _ in range(5)] == [[b"aa", b"bb"], [b"cc"], [b"d" * 9], [b"e"], []]
    assert len(outgoing) == 0
    assert outgoing.kept_bytes == 16


def test_what_the_other_side_has_not_had_is_taken_again_as_it_was() -> None:
    outgoing = sent(b"a", b"b", b"c")
    assert [outgoing.take(), outgoing.take(2)] == [[b"a"], [b"b", b"c"]]
    outgoing.resume(1)
    outgoing.add(b"d")
    assert outgoing.is_repeating
    assert outgoing.take(9) == [b"b", b"c"]
    assert not outgoing.is_repeating
    assert outgoing.take(9) == [b"d"]
    assert outgoing.kept_bytes == 3


def test_acknowledged_messages_are_not_kept_and_a_late_word_changes_nothing() -> None:
    outgoing = sent(b"a", b"b")
    outgoing.take(), outgoing.take()
    outgoing.acknowledge(2)
    outgoing.acknowledge(1)
    assert (outgoing.acknowledged, outgoing.kept_bytes) == (2, 0)
    outgoing.resume(2)
    assert outgoing.take() == []


def test_a_number_that_cannot_be_is_refused() -> None:
    outgoing = sent(b"a", b"b")
    outgoing.take()
    with pytest.raises(ValueError, match="2 messages were acknowledged, and 1 sent"):
        outgoing.acknowledge(2)
    outgoing.acknowledge(1)
    with pytest.raises(ValueError, match="0 messages are said to have come, and 1 were acknowledged"):
        outgoing.resume(0)
    with pytest.raises(ValueError, match="3 messages were acknowledged, and 1 sent"):
        outgoing.resume(3)


def test_an_acknowledgement_is_due_at_once_after_many_messages_or_many_bytes() -> None:
    incoming = IncomingMessages()
    assert [incoming.add(1) for _ in range(ACK_MESSAGES)] == [False] * (ACK_MESSAGES - 1) + [True]
    assert incoming.is_owing
    assert incoming.acknowledge() == ACK_MESSAGES
    assert not incoming.is_owing
    assert [incoming.add(ACK_BYTES // 2), incoming.add(ACK_BYTES // 2)] == [False, True]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 5)),
        st.tuples(st.just("write"), st.integers(0, 8)),
        st.tuples(st.just("read"), st.integers(1, 4)),
        st.tuples(st.just("acknowledge"), st.just(0)),
        st.tuples(st.just("break"), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_whatever_breaks_all_that_is_sent_arrives_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    outgoing, incoming = OutgoingMessages(), IncomingMessages()
    wire: list[bytes] = []
    expected, arrived = b"", b""

    def write(limit: int) -> bool:
        message = outgoing.take(limit)
        wire.extend([b"".join(message)] if message else [])
        return bool(message)

    def read(count: int) -> None:
        nonlocal arrived
        for message in wire[:count]:
            incoming.add(len(message))
            arrived += message
        del wire[:count]

    for step, number in [*steps, ("break", 0)]:
        if step == "send":
            part = bytes(len(expected) % 251 + place for place in range(number))
            expected += part
            outgoing.add(part)
        elif step == "write":
            write(number)
        elif step == "read":
            read(number)
        elif step == "acknowledge":
            outgoing.acknowledge(incoming.acknowledge())
        else:
            wire.clear()
            outgoing.resume(incoming.received)
        assert expected.startswith(arrived)
    while write(3):
        pass
    read(len(wire))
    assert arrived == expected
    outgoing.acknowledge(incoming.acknowledge())
    assert outgoing.kept_bytes == 0
