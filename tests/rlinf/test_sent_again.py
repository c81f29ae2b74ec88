"""Versions that are sent again: the last one counts, late buckets do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlinf_async.errors import StaleVersion, WrongBase
from rlinf_async.rlinf.sending import Sending
from tests.rlinf.two_ends import KINDS, Net, Wire, a_receiver, bits, coming, meet

BUCKETS, PATCH = KINDS["buckets"], KINDS["patch"]


async def sendings(sender: Any, source: Net, numbers: list[int]) -> tuple[list[list[Any]], list[dict[str, list[int]]]]:
    """What is sent for each, training in between, and the weights."""
    sent, weights = [], []
    for number in numbers:
        wire = Wire()
        await sender.sync(source.step().state_dict(), wire.send, number)
        sent.append(wire.sent)
        weights.append(bits(source))
    return sent, weights


@pytest.mark.parametrize("kind", KINDS)
async def test_a_version_that_is_sent_again_for_evaluation_is_the_one_that_receivers_have(kind: str) -> None:
    sender, receiver, source, target = await a_receiver(KINDS[kind])
    numbers = [0, 0, 1, 1, 1, 2]
    sent, weights = await sendings(sender, source, numbers)
    for number, messages, expected in zip(numbers, sent, weights, strict=True):
        assert await receiver.apply(target, coming(*messages)) == receiver.version == number
        assert bits(target) == expected
    assert sender.version == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_a_version_may_be_staged_and_sent_and_staged_again(kind: str) -> None:
    sender, receiver, source, target = await a_receiver(KINDS[kind])
    wire = Wire()
    await (await sender.stage(source.step().state_dict(), 4)).deliver(wire.send)
    await sender.sync(source.step().state_dict(), wire.send, 4)
    await (await sender.stage(source.step().state_dict(), 4)).deliver(wire.send)
    for _ in range(3):
        assert await receiver.apply(target, wire.there.get) == 4
    assert bits(target) == bits(source)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_failed_send_is_retried_with_its_number_as_often_as_it_takes(kind: str) -> None:
    sender, receiver, source, target = await a_receiver(KINDS[kind])
    sent, _ = await sendings(sender, source, [4])
    await receiver.apply(target, coming(*sent[0]))
    wire = Wire()
    for fails_after in (0, 1, 1):
        left = fails_after

        async def breaks(message: Any) -> None:
            nonlocal left
            if not left:
                raise OSError("no route")
            left -= 1
            await wire.send(message)
            if len(sent[0]) == 1:
                raise OSError("no route")

        with pytest.raises(OSError, match="no route"):
            await sender.sync(source.step().state_dict(), breaks, 5)
        assert sender.version == 4
    await sender.sync(source.step().state_dict(), wire.send, 5)
    while not wire.there.empty():
        assert await receiver.apply(target, wire.there.get) == 5
    assert sender.version == 5
    assert bits(target) == bits(source)


async def test_late_and_doubled_buckets_of_a_version_that_is_sent_again_change_nothing() -> None:
    sender, receiver, source, target = await a_receiver(BUCKETS)
    (first, second, third, last), weights = await sendings(sender, source, [5, 5, 5, 6])
    assert len(first) == 3
    recv = coming(
        *first[:2],  # given up
        *second[:2],
        second[0],
        first[2],
        second[1],
        *second[2:],
        second[-1],
        third[0],
        *first[1:],
        second[-1],
        *third,
        third[-1],
        *last,
    )
    for version, expected in [(5, weights[1]), (5, weights[2]), (6, weights[3])]:
        assert await receiver.apply(target, recv) == version
        assert bits(target) == expected


@pytest.mark.parametrize("kind", [BUCKETS, PATCH])
async def test_an_earlier_or_doubled_sending_of_the_version_that_is_here_is_refused(kind: Callable[[], Any]) -> None:
    sender, receiver, source, target = await a_receiver(kind)
    (whole, first, second, last), weights = await sendings(sender, source, [1, 5, 5, 5])
    for messages in (whole, first, second):
        await receiver.apply(target, coming(*messages))
    for messages in (first, second):
        with pytest.raises(StaleVersion, match=r"this sending of version 5 .* late or doubled") as raised:
            await receiver.apply(target, coming(*messages))
        assert (raised.value.version, raised.value.latest) == (5, 5)
        assert bits(target) == weights[2]
    assert await receiver.apply(target, coming(*last)) == 5
    assert bits(target) == weights[3]


@pytest.mark.parametrize("changes", [True, False])
async def test_a_patch_for_another_sending_of_the_version_that_is_here_is_refused(changes: bool) -> None:
    sender, receiver, source, target = await a_receiver(PATCH)
    (first, _), _ = await sendings(sender, source, [5, 5])
    assert await receiver.apply(target, coming(*first)) == 5  # the second one is lost
    before, wire = bits(target), Wire()
    await sender.sync((source.step() if changes else source).state_dict(), wire.send, 6)
    assert hasattr(wire.sent[0], "body") is changes
    assert wire.sent[0].base.version == 5
    with pytest.raises(WrongBase, match="for another sending of version 5 than the one that is here"):
        await receiver.apply(target, coming(*wire.sent))
    assert bits(target) == before
    assert receiver.version == 5
    sender.request_full()
    (last,), weights = await sendings(sender, source, [6])
    assert await receiver.apply(target, coming(*last)) == 6
    assert [bits(target)] == weights


async def test_a_request_for_everything_while_a_version_is_on_its_way_is_for_the_next_one() -> None:
    sender, receiver, source, target = await a_receiver(PATCH)
    await sendings(sender, source, [1])  # and the receiver has lost it
    wire = Wire()
    staged = await sender.stage(source.step().state_dict(), 2)
    sender.request_full()
    await staged.deliver(wire.send)
    with pytest.raises(WrongBase):
        await receiver.apply(target, coming(*wire.sent))
    (whole, patch), weights = await sendings(sender, source, [3, 4])
    assert (whole[0].base is None, patch[0].base.version) == (True, 3)
    for number, messages, expected in zip((3, 4), (whole, patch), weights, strict=True):
        assert await receiver.apply(target, coming(*messages)) == number
        assert bits(target) == expected


@pytest.mark.parametrize("kind", KINDS)
async def test_where_both_ends_begin_anew_the_sendings_are_counted_anew(kind: str) -> None:
    sender, receiver, source, target = await a_receiver(KINDS[kind])
    sent, _ = await sendings(sender, source, [7, 7, 7])
    for messages in sent:
        await receiver.apply(target, coming(*messages))
    await meet(sender, receiver, source, target)
    sent, weights = await sendings(sender, source, [7, 7])
    for messages, expected in zip(sent, weights, strict=True):
        assert await receiver.apply(target, coming(*messages)) == 7
        assert bits(target) == expected


def test_of_two_sendings_the_later_one_is_known() -> None:
    first = Sending.none_yet().following(5)
    again, last = first.following(5), first.following(5).following(6)
    in_order = [Sending.beginning({}), first, again, last]
    for place, sending in enumerate(in_order):
        assert [sending.is_after(other) for other in in_order] == [other < place for other in range(4)]
    other = Sending.none_yet().following(5)
    assert other != first
    assert not other.is_after(again)
    assert not again.is_after(other)
    assert other.following(7).is_after(last)
