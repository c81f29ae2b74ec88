"""Atomic updates of a syncer's receiver, under late, duplicate and damaged buckets."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from rlinf_async.errors import PeerLost, StaleVersion, WeightMismatch, WrongBase
from rlinf_async.weights import BucketWeightSyncer
from tests.rlinf.two_ends import KINDS, Net, Wire, a_receiver, bits, coming, meet, versions

BUCKETS, PATCH = KINDS["buckets"], KINDS["patch"]


async def test_a_sender_that_dies_between_two_buckets_leaves_the_last_whole_version() -> None:
    sender, receiver, source, target = await a_receiver(BUCKETS)
    sent = await versions(sender, source, [1])
    await receiver.apply(target, coming(*sent[1]))
    before = bits(target)
    sent |= await versions(sender, source, [2, 3])
    assert len(sent[2]) > 2
    with pytest.raises(PeerLost):
        await receiver.apply(target, coming(*sent[2][:-1]))
    assert bits(target) == before
    assert receiver.version == 1
    assert await receiver.apply(target, coming(*sent[3])) == receiver.version == 3
    assert bits(target) == bits(source)


def of_another_shape(tensor: torch.Tensor) -> Any:
    return tensor.flatten()[:-1]


def of_another_kind(tensor: torch.Tensor) -> Any:
    return torch.complex(tensor, tensor)


def of_no_kind(tensor: torch.Tensor) -> Any:
    return 7


@pytest.mark.parametrize("damage", [of_another_shape, of_another_kind, of_no_kind])
@pytest.mark.parametrize("place", [0, -1])
async def test_a_bucket_that_does_not_fit_is_refused_with_all_of_its_version(
    place: int, damage: Callable[[torch.Tensor], Any]
) -> None:
    sender, receiver, source, target = await a_receiver(BUCKETS)
    sent = await versions(sender, source, [1, 2])
    before = bits(target)
    bucket = sent[1][place]
    name = next(name for name in bucket if name.endswith("weight"))
    bucket[name] = damage(bucket[name])
    with pytest.raises(WeightMismatch):
        await receiver.apply(target, coming(*sent[1]))
    assert bits(target) == before
    assert receiver.version == -1
    # What else there was of it is passed over.
    assert await receiver.apply(target, coming(*sent[1][1:], *sent[2])) == 2
    assert bits(target) == bits(source)


async def test_a_lost_bucket_is_told_once_and_nothing_is_written() -> None:
    sender, receiver, source, target = await a_receiver(BUCKETS)
    sent = await versions(sender, source, [1, 2, 3, 4])
    before = bits(target)
    recv = coming(sent[1][0], *sent[1][2:], *sent[2][1:], *sent[3][:-1], *sent[4])
    with pytest.raises(WeightMismatch, match="bucket 2 of version 1 has come, and bucket 1 has not"):
        await receiver.apply(target, recv)
    with pytest.raises(WeightMismatch, match="bucket 1 of version 2 has come, and not the first of its version"):
        await receiver.apply(target, recv)
    assert bits(target) == before
    assert await receiver.apply(target, recv) == 4  # of version 3 the last one is lost, and the sender goes on
    assert bits(target) == bits(source)


async def test_late_and_doubled_buckets_change_nothing() -> None:
    sender, receiver, source, target = await a_receiver(BUCKETS)
    sent = await versions(sender, source, [1, 2, 3])
    first, second, third = sent.values()
    recv = coming(first[0], first[0], *first[:2], *second[:2], first[1], first[2], second[0], *second[1:], *third)
    assert await receiver.apply(target, recv) == 2
    wanted = Net()
    other, peer = BUCKETS(), BUCKETS()
    await meet(other, peer, source, wanted)
    await peer.apply(wanted, coming(*second))
    assert bits(target) == bits(wanted)
    assert await receiver.apply(target, coming(second[-1], *third)) == 3
    assert bits(target) == bits(source)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_update_that_is_late_or_doubled_is_refused_and_the_next_one_applied(kind: str) -> None:
    sender, receiver, source, target = await a_receiver(KINDS[kind])
    sent: dict[int, list[Any]] = {}
    for number in (1, 2, 3):
        if hasattr(sender, "request_full"):
            sender.request_full()
        sent |= await versions(sender, source, [number])
    recv = coming(*sent[2], *sent[1], *sent[2], *sent[3])
    assert await receiver.apply(target, recv) == 2
    before = bits(target)
    for late, why in [(1, "version 1 of the weights is before version 2"), (2, "version 2 of .* late or doubled")]:
        with pytest.raises(StaleVersion, match=why) as raised:
            await receiver.apply(target, recv)
        assert (raised.value.version, raised.value.latest) == (late, 2)
        assert bits(target) == before
        assert receiver.version == 2
    assert await receiver.apply(target, recv) == receiver.version == 3
    assert bits(target) == bits(source)


@pytest.mark.parametrize("again", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_failed_send_has_brought_is_not_mixed_with_what_comes_next(kind: str, again: int) -> None:
    sender, receiver, source, target = await a_receiver(KINDS[kind])
    wire = Wire()

    async def breaks(message: Any) -> None:
        await wire.send(message)
        raise OSError("no route")

    with pytest.raises(OSError, match="no route"):
        await sender.sync(source.step().state_dict(), breaks, 1)
    assert sender.version == -1
    await sender.sync(source.step().state_dict(), wire.send, again)
    while not wire.there.empty():
        await receiver.apply(target, wire.there.get)
    assert receiver.version == sender.version == again
    assert bits(target) == bits(source)


@pytest.mark.parametrize("kind", [BUCKETS, PATCH])
@pytest.mark.parametrize(
    ("version", "error"), [(1, StaleVersion), (0, StaleVersion), (-1, ValueError), (True, TypeError), (2.5, TypeError)]
)
async def test_a_number_that_is_lower_than_the_last_is_refused_before_anything_is_sent(
    kind: Callable[[], Any], version: Any, error: type[Exception]
) -> None:
    sender, receiver, source, target = await a_receiver(kind)
    sent = await versions(sender, source, [2])
    wire = Wire()
    with pytest.raises(error):
        await sender.sync(source.state_dict(), wire.send, version)
    with pytest.raises(error):
        await sender.stage(source.state_dict(), version)
    assert not wire.sent
    assert sender.version == 2
    sent |= await versions(sender, source, [3])
    for number in (2, 3):
        assert await receiver.apply(target, coming(*sent[number])) == number


async def test_a_number_that_buckets_cannot_carry_is_refused() -> None:
    sender, _, source, _ = await a_receiver(BUCKETS)
    with pytest.raises(ValueError, match="at most 2147483647; got 2147483648"):
        await sender.sync(source.state_dict(), Wire().send, 1 << 31)
    await versions(sender, source, [1, (1 << 31) - 1])


async def test_weights_that_have_become_others_are_refused_by_patches_before_anything_is_sent() -> None:
    sender, _, source, _ = await a_receiver(PATCH)
    wire = Wire()
    changed = source.state_dict() | {"head.bias": torch.ones(29)}
    with pytest.raises(WeightMismatch, match=r"'head.bias' .*29"):
        await sender.sync(changed, wire.send, 1)
    assert not wire.sent
    await sender.sync(source.state_dict(), wire.send, 1)


def shorter(model: Net) -> None:
    model.head.weight = nn.Parameter(torch.ones(30, 7))


def gone(model: Net) -> None:
    del model.head.weight


def without_memory(model: Net) -> None:
    model.head.to(device="meta")


def all_one_element(model: Net) -> None:
    model.head.weight = nn.Parameter(torch.zeros(()).expand(30, 40), requires_grad=False)


def a_twin_of_another_shape(model: Net) -> None:
    model.back.weight = nn.Parameter(torch.ones(2, 2))


@pytest.mark.parametrize("kind", ["buckets", "patch", "patch, compressed"])
@pytest.mark.parametrize("change", [shorter, gone, without_memory, all_one_element, a_twin_of_another_shape])
async def test_a_model_whose_last_part_does_not_fit_is_not_written_to(kind: str, change: Callable[[Net], None]) -> None:
    if kind == "buckets" and change is gone:
        return  # what the receiver lacks is skipped
    sender, receiver, source, target = await a_receiver(KINDS[kind])
    sent = await versions(sender, source, [1, 2])
    model = copy.deepcopy(target)
    change(model)
    before = bits(model.body)
    with pytest.raises(WeightMismatch):
        await receiver.apply(model, coming(*sent[1]))
    assert bits(model.body) == before
    assert receiver.version == -1
    if kind.startswith("buckets"):
        assert await receiver.apply(target, coming(*sent[2])) == 2
    else:
        assert await receiver.apply(target, coming(*sent[1])) == 1


async def test_buckets_are_written_as_they_come_only_where_that_is_asked_for() -> None:
    sender, receiver, source, target = await a_receiver(KINDS["buckets, each written when it comes"])
    assert not BucketWeightSyncer().load_instant
    sent = await versions(sender, source, [1, 2])
    before = bits(target)
    with pytest.raises(PeerLost):
        await receiver.apply(target, coming(*sent[1][:-1]))
    assert bits(target) != before
    assert not receiver._incoming.weights
    assert await receiver.apply(target, coming(*sent[2])) == 2
    assert bits(target) == bits(source)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_apply_is_gone_on_with_by_the_next(kind: str) -> None:
    sender, receiver, source, target = await a_receiver(KINDS[kind])
    wire = Wire()
    await sender.sync(source.step().state_dict(), wire.send, 1)
    *held, last = wire.sent
    waiting = asyncio.Event()

    async def recv() -> Any:
        if held:
            return held.pop(0)
        waiting.set()
        return await asyncio.Event().wait()

    applying = asyncio.create_task(receiver.apply(target, recv))
    await waiting.wait()
    with pytest.raises(RuntimeError, match=r"another apply\(\) is under way"):
        await receiver.apply(target, coming(last))
    applying.cancel()
    await asyncio.wait([applying])
    assert await receiver.apply(target, coming(last)) == 1
    assert bits(target) == bits(source)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_receiver_or_a_sender_that_begins_anew_is_told_so_and_both_may(kind: str) -> None:
    sender, receiver, source, target = await a_receiver(KINDS[kind])
    sent = await versions(sender, source, [5, 6])
    await receiver.apply(target, coming(*sent[5]))
    before, anew = bits(target), KINDS[kind]()
    again, late = KINDS[kind](), copy.deepcopy(target)
    await meet(anew, again, source, late)
    if kind.startswith("patch"):
        with pytest.raises(WrongBase):
            await again.apply(late, coming(*sent[6]))
    # From a checkpoint, say: the numbers begin anew as well.
    lower = await versions(anew, source, [1])
    if kind.startswith("patch"):
        with pytest.raises(StaleVersion, match=r"of another sender \(init_receiver\(\) begins anew here too\)"):
            await receiver.apply(target, coming(*lower[1]))
        assert bits(target) == before
        await meet(anew, receiver, source, target)
    else:
        assert await receiver.apply(target, coming(*lower[1])) == receiver.version == 1
        with pytest.raises(StaleVersion):
            await receiver.apply(target, coming(*sent[6]))
    for number in (1, 2):
        again = await versions(anew, source, [number])
        assert await receiver.apply(target, coming(*again[number])) == number
    assert bits(target) == bits(source)


@pytest.mark.parametrize("kind", [BUCKETS, PATCH])
async def test_what_is_on_its_way_is_sent_once_and_nobody_begins_anew_meanwhile(kind: Callable[[], Any]) -> None:
    sender, receiver, source, target = await a_receiver(kind)
    staged, wire = await sender.stage(source.step().state_dict(), 1), Wire()
    with pytest.raises(RuntimeError, match="a version is on its way"):
        await sender.init_sender(source.state_dict(), None, wire.send, wire.back.get)
    await staged.deliver(wire.send)
    sent = len(wire.sent)
    await sender.sync(source.step().state_dict(), wire.send, 2)
    with pytest.raises(RuntimeError, match="version 1 has been delivered, or given up"):
        await staged.deliver(wire.send)
    assert sender.version == 2
    assert len(wire.sent) == 2 * sent
    for number in (1, 2):
        assert await receiver.apply(target, wire.there.get) == number


@pytest.mark.parametrize("kind", [BUCKETS, PATCH])
async def test_a_staged_version_that_is_dropped_keeps_no_later_one_from_being_sent(kind: Callable[[], Any]) -> None:
    sender, receiver, source, target = await a_receiver(kind)
    await sender.stage(source.step().state_dict(), 1)
    wire = Wire()
    await sender.sync(source.step().state_dict(), wire.send, 1)
    assert await receiver.apply(target, wire.there.get) == 1
    assert bits(target) == bits(source)


async def test_two_tensors_that_an_agents_receiver_would_take_for_one_are_refused() -> None:
    source = dict.fromkeys(["model.language_model.w", "model.w", "visual.w"], torch.ones(2))
    sender, wire = BucketWeightSyncer(is_agent=True), Wire()
    await sender.init_sender(source, None, wire.send)
    with pytest.raises(ValueError, match=r"two tensors the name 'model\.w'"):
        await sender.sync(source, wire.send, 1)
    assert not wire.sent
