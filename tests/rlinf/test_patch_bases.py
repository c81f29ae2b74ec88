"""Bases of patches: applied whole to the right one, or refused."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from rlinf_async.errors import PeerLost, StaleVersion, WeightMismatch, WrongBase
from tests.rlinf.two_ends import KINDS, Net, Wire, a_receiver, bits, coming, meet, versions

PATCH = KINDS["patch"]


async def test_a_patch_on_another_senders_version_of_the_same_number_is_refused() -> None:
    source, target = Net(), Net()
    theirs = copy.deepcopy(source)
    sender, receiver, other = PATCH(), PATCH(), PATCH()
    await meet(other, PATCH(), theirs, Net())
    await meet(sender, receiver, source, target)
    sent = await versions(sender, source, [1, 3])
    await receiver.apply(target, coming(*sent[1]))
    before = bits(target)
    strange = await versions(other, theirs, [1, 2, 3])
    with pytest.raises(WrongBase, match="version 1 of another sender"):
        await receiver.apply(target, coming(*strange[2]))
    assert bits(target) == before
    assert await receiver.apply(target, coming(*sent[3])) == 3
    assert bits(target) == bits(source)
    other.request_full()
    strange = await versions(other, theirs, [4, 5])
    for number in (4, 5):
        assert await receiver.apply(target, coming(*strange[number])) == number
    assert bits(target) == bits(theirs)


async def test_an_empty_patch_is_held_to_the_same_order() -> None:
    sender, receiver, source, target = await a_receiver(PATCH)
    sent = await versions(sender, source, [1])
    wire = Wire()
    await sender.sync(source.state_dict(), wire.send, 2)
    with pytest.raises(WrongBase, match="for version 1 of the weights, and version -1 is here"):
        await receiver.apply(target, coming(*wire.sent))
    for message in (*sent[1], *wire.sent):
        await receiver.apply(target, coming(message))
    with pytest.raises(StaleVersion):
        await receiver.apply(target, coming(*wire.sent))
    assert receiver.version == 2


async def test_a_patch_whose_last_piece_is_damaged_changes_nothing() -> None:
    sender, receiver, source, target = await a_receiver(PATCH)
    sent = await versions(sender, source, [1, 2])
    await receiver.apply(target, coming(*sent[1]))
    before, (patch,) = bits(target), sent[2]
    digest, size, table = msgpack.unpackb(patch.head)
    heads = [[digest, wrong, table] for wrong in (0, 1000, 2 * size + 4, -size, "x")]
    heads += [
        [digest, size, table[:-9]],
        [digest[::-1], size, table],
        [digest, size, table[:-9] + b"\x02" + table[-8:]],
    ]
    wrong = [replace(patch, head=msgpack.packb(head)) for head in heads]
    for damaged in (*wrong, replace(patch, body=patch.body[:-8]), replace(patch, head=patch.head[:-1])):
        with pytest.raises(WeightMismatch):
            await receiver.apply(target, coming(damaged))
        assert bits(target) == before
    assert await receiver.apply(target, coming(patch)) == 2
    assert bits(target) == bits(source)


async def test_a_sender_that_dies_during_the_first_meeting_leaves_the_receivers_weights() -> None:
    kind = KINDS["patch, first whole"]
    source, target = Net(), Net()
    sender, receiver, wire, before = kind(), kind(), Wire(), bits(target)
    async with asyncio.TaskGroup() as group:
        group.create_task(sender.init_sender(source.state_dict(), None, wire.send, wire.back.get))
        meeting = group.create_task(
            receiver.init_receiver(copy.deepcopy(target).state_dict(), wire.there.get, wire.back.put)
        )
        await asyncio.wait([meeting])
    assert len(wire.sent) == 3

    async def nowhere(message: Any) -> None:
        pass

    for messages in (wire.sent[:-1], wire.sent[1:], [wire.sent[0], wire.sent[2]]):
        late = kind()
        with pytest.raises((PeerLost, WeightMismatch)):
            await late.init_receiver(target.state_dict(), coming(*messages), nowhere)
        assert bits(target) == before
        assert not late.receiver_initialized()
