"""RLinf's syncers over any two callbacks."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from rlinf_async.errors import ConfigError, StaleVersion, WeightMismatch, WrongBase
from rlinf_async.rlinf.syncer import WeightSyncer, collect_param_names_need_sync
from rlinf_async.weights import (
    BucketWeightSyncer,
    CompressedWeightPatch,
    EmptyWeightPatch,
    PatchWeightSyncer,
    iter_named_tensor_buckets,
)
from tests.rlinf.two_ends import KINDS, Net, Wire, bits, meet


@pytest.mark.parametrize("kind", KINDS)
async def test_every_version_arrives_bit_for_bit_with_its_number(kind: str) -> None:
    source, target = Net(), Net()
    sender, receiver = KINDS[kind](), KINDS[kind]()
    wire = await meet(sender, receiver, source, target)
    parameters = dict(target.named_parameters())
    for version in range(1, 6):
        source.step()
        async with asyncio.TaskGroup() as group:
            group.create_task(sender.sync(source.state_dict(), wire.send, version))
            applying = group.create_task(receiver.apply(target, wire.there.get))
        assert applying.result() == version == receiver.version == sender.version
        assert bits(target) == bits(source)
    assert all(parameters[name] is parameter for name, parameter in target.named_parameters())


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_staged_does_not_see_later_steps(kind: str) -> None:
    source, target = Net(), Net()
    sender, receiver = KINDS[kind](), KINDS[kind]()
    wire = await meet(sender, receiver, source, target)
    for version in (1, 2):
        staged = await sender.stage(source.step().state_dict(), version)
        expected = bits(source)
        source.step(1.0)
        with pytest.raises(RuntimeError, match="another version is on its way"):
            await sender.sync(source.state_dict(), wire.send, 9)
        await staged.deliver(wire.send)
        assert await receiver.apply(target, wire.there.get) == version
        assert bits(target) == expected


@pytest.mark.parametrize("kind", KINDS)
async def test_a_send_that_fails_is_made_good_by_the_next(kind: str) -> None:
    source, target = Net(), Net()
    sender, receiver = KINDS[kind](), KINDS[kind]()
    wire = await meet(sender, receiver, source, target)

    async def broken(message: Any) -> None:
        raise OSError("no route")

    for version in (1, 3):
        await sender.sync(source.step().state_dict(), wire.send, version)
        assert await receiver.apply(target, wire.there.get) == version
        with pytest.raises(OSError, match="no route"):
            await sender.sync(source.step().state_dict(), broken, version + 1)
        assert sender.version == version
    await sender.sync(source.state_dict(), wire.send, 5)
    assert await receiver.apply(target, wire.there.get) == 5
    assert bits(target) == bits(source)


async def test_a_cancelled_sync_leaves_the_sender_usable() -> None:
    source, target = Net(), Net()
    sender, receiver = PatchWeightSyncer(), PatchWeightSyncer()
    wire = await meet(sender, receiver, source, target)
    stuck = asyncio.Event()

    async def never(message: Any) -> None:
        stuck.set()
        await asyncio.Event().wait()

    syncing = asyncio.create_task(sender.sync(source.step().state_dict(), never, 1))
    await stuck.wait()
    syncing.cancel()
    await asyncio.wait([syncing])
    await sender.sync(source.step().state_dict(), wire.send, 2)
    assert await receiver.apply(target, wire.there.get) == 2
    assert bits(target) == bits(source)


async def test_only_the_keys_that_are_asked_for_travel() -> None:
    source, target = Net(), Net()
    source.head.requires_grad_(False)
    names = collect_param_names_need_sync(source)
    assert "head.weight" not in names
    assert {"body.1.running_mean", "body.0.weight", "back.weight"} <= set(names)
    for kind in (BucketWeightSyncer, PatchWeightSyncer):
        sender, receiver, before = kind(), kind(), bits(target)
        wire = await meet(sender, receiver, source, target, names)
        await sender.sync(source.step().state_dict(), wire.send, 1)
        await receiver.apply(target, wire.there.get)
        assert bits(target)["head.weight"] == before["head.weight"]
        assert bits(target)["body.0.weight"] == bits(source)["body.0.weight"]
        error = ValueError if kind is BucketWeightSyncer else WeightMismatch
        with pytest.raises(error, match=r"No parameters to sync|the weights lack 'back\.weight', 'body\.0\.bias'"):
            await sender.sync({"head.weight": source.head.weight}, wire.send, 2)


async def test_the_receivers_dtype_decides_what_a_patch_is() -> None:
    source, target = Net(), Net().bfloat16()
    sender, receiver = PatchWeightSyncer(), PatchWeightSyncer()
    wire = await meet(sender, receiver, source, target)
    for version in range(1, 4):
        await sender.sync(source.step().state_dict(), wire.send, version)
        await receiver.apply(target, wire.there.get)
        assert bits(target) == bits(copy.deepcopy(source).bfloat16())
    with torch.no_grad():
        source.head.bias.copy_(source.head.bias.bfloat16() * (1 + 1e-6))  # less than bfloat16 can tell
    await sender.sync(source.state_dict(), wire.send, 4)
    assert isinstance(wire.sent[-1], EmptyWeightPatch)
    assert await receiver.apply(target, wire.there.get) == 4


async def test_weights_that_are_tied_at_the_sender_only_arrive_under_each_name() -> None:
    source, target = Net(), Net()
    target.back = nn.Linear(30, 40, bias=False)
    assert target.back.weight is not target.body[0].weight
    sender, receiver = PatchWeightSyncer(), PatchWeightSyncer()
    wire = await meet(sender, receiver, source, target)
    for version in (1, 2):
        await sender.sync(source.step().state_dict(), wire.send, version)
        await receiver.apply(target, wire.there.get)
        assert bits(target) == bits(source)


async def test_patches_are_small_and_nan_is_not_sent_again() -> None:
    source, target = Net(), Net()
    sender, receiver = PatchWeightSyncer(), PatchWeightSyncer()
    wire = await meet(sender, receiver, source, target)
    await sender.sync(source.step().state_dict(), wire.send, 1)
    assert wire.sent[-1].base is None  # the two began with different weights
    await sender.sync(source.state_dict(), wire.send, 2)
    assert isinstance(wire.sent[-1], EmptyWeightPatch)
    with torch.no_grad():
        source.head.weight[3, 3] = 7
    await sender.sync(source.state_dict(), wire.send, 3)
    assert wire.sent[-1].body.numel() <= 16
    for version in (1, 2, 3):
        assert await receiver.apply(target, wire.there.get) == version
    assert bits(target) == bits(source)


async def test_where_both_begin_with_the_same_weights_the_first_is_a_patch_already() -> None:
    source = Net()
    target = copy.deepcopy(source)
    sender, receiver = PatchWeightSyncer(compression_algorithm="zlib"), PatchWeightSyncer()
    wire = await meet(sender, receiver, source, target)
    await sender.sync(source.step().state_dict(), wire.send, 1)
    assert isinstance(wire.sent[-1], CompressedWeightPatch)
    assert wire.sent[-1].patch.base.number == -1  # what both began with
    await receiver.apply(target, wire.there.get)
    assert bits(target) == bits(source)


async def test_a_patch_on_another_base_is_refused_until_everything_is_sent() -> None:
    source, target, late = Net(), Net(), Net()
    sender, receiver, other = PatchWeightSyncer(), PatchWeightSyncer(), PatchWeightSyncer()
    await meet(PatchWeightSyncer(), other, late, late)
    wire = await meet(sender, receiver, source, target)
    for version in (1, 2):
        await sender.sync(source.step().state_dict(), wire.send, version)
        await receiver.apply(target, wire.there.get)
    before = bits(late)
    await wire.there.put(wire.sent[-1])
    with pytest.raises(WrongBase, match="for version 1 of the weights, and version -1 is here") as raised:
        await other.apply(late, wire.there.get)
    assert (raised.value.base, raised.value.version) == (1, -1)
    await wire.there.put(wire.sent[-1])
    with pytest.raises(StaleVersion, match="sending of version 2 of the weights is not after the one which is here"):
        await receiver.apply(target, wire.there.get)  # the same one twice
    assert bits(late) == before
    assert bits(target) == bits(source)
    sender.request_full()
    await sender.sync(source.step().state_dict(), wire.send, 3)
    await wire.there.put(wire.sent[-1])
    assert await other.apply(late, wire.there.get) == await receiver.apply(target, wire.there.get) == 3
    assert bits(late) == bits(target) == bits(source)


async def test_a_first_patch_for_other_weights_is_refused() -> None:
    source, other = Net(), Net()
    receiver = PatchWeightSyncer()
    await meet(PatchWeightSyncer(), receiver, Net(), other)
    sender = PatchWeightSyncer()
    wire = await meet(sender, PatchWeightSyncer(), source, copy.deepcopy(source))
    await sender.sync(source.step().state_dict(), wire.send, 1)
    with pytest.raises(WrongBase, match="other weights than this receiver began with"):
        await receiver.apply(other, wire.there.get)


async def test_damaged_patches_are_refused_and_nothing_is_written() -> None:
    source = Net()
    target = copy.deepcopy(source)
    sender, receiver = PatchWeightSyncer(), PatchWeightSyncer()
    wire = await meet(sender, receiver, source, target)
    before = bits(target)
    await sender.sync(source.step().state_dict(), wire.send, 1)
    patch = await wire.there.get()
    for wrong in [
        replace(patch, body=patch.body[:-8]),
        replace(patch, base=None, head=b"x"),
        CompressedWeightPatch(patch, b"x"),
        {"total_buckets": 1},
    ]:
        await wire.there.put(wrong)
        with pytest.raises(WeightMismatch):
            await receiver.apply(target, wire.there.get)
    assert bits(target) == before
    await wire.there.put(patch)
    assert await receiver.apply(target, wire.there.get) == 1


async def test_a_receiver_with_weights_of_other_shapes_is_told_before_anything_is_written() -> None:
    class Smaller(Net):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(40, 7)

    words = r"'head\.bias' has shape \[(30|7)\] .* \[(30|7)\]"
    with pytest.raises(ExceptionGroup) as raised:
        await meet(PatchWeightSyncer(), PatchWeightSyncer(), Net(), Smaller())
    assert raised.group_contains(WeightMismatch, match=words)
    sender, receiver, target = BucketWeightSyncer(bucket_size=1), BucketWeightSyncer(), Smaller()
    wire, before = await meet(sender, receiver, source := Net(), target), bits(target)
    await sender.sync(source.state_dict(), wire.send, 1)
    with pytest.raises(WeightMismatch, match=words):
        await receiver.apply(target, wire.there.get)
    assert bits(target) == before


async def test_an_agents_language_model_is_renamed() -> None:
    source = {"model.language_model.w": torch.ones(2), "model.v": torch.ones(1), "visual.w": torch.ones(3)}
    target = {"model.w": torch.zeros(2), "model.v": torch.zeros(1)}
    sender, receiver = BucketWeightSyncer(is_agent=True), BucketWeightSyncer()
    wire = Wire()
    await sender.init_sender(source, None, wire.send)
    await receiver.init_receiver(target, wire.there.get)
    await sender.sync(source, wire.send, 1)
    assert await receiver.apply(target, wire.there.get) == 1
    assert target["model.w"].tolist() == [1, 1]


def test_buckets_end_at_their_size_and_the_first_says_how_many() -> None:
    items = [(f"l{i}", torch.full((100,), float(i))) for i in range(5)] + [("n", torch.arange(3))]
    buckets = list(
        iter_named_tensor_buckets(
            items, 7, bucket_size=800, bucket_device="cpu", dtype_resolver=lambda name, dtype: torch.float16
        )
    )
    assert [list(bucket)[-1] for bucket in buckets] == ["l3", "n"]
    assert (buckets[0]["total_buckets"].item(), buckets[0]["syncer_version"].item()) == (2, 7)
    assert buckets[0]["total_buckets"].dtype is torch.int32
    assert (buckets[1]["l4"].dtype, buckets[1]["n"].dtype) == (torch.float16, torch.float16)
    with pytest.raises(ValueError, match="No parameters to sync"):
        list(iter_named_tensor_buckets([], 1, bucket_size=1, bucket_device="cpu"))
    for name in ("total_buckets", "syncer_version"):
        with pytest.raises(ValueError, match="conflicts with metadata key"):
            list(iter_named_tensor_buckets([(name, torch.ones(1))], 1, bucket_size=1, bucket_device="cpu"))


def test_a_syncer_is_made_from_a_configuration() -> None:
    syncer = WeightSyncer.create(
        {"type": "bucket", "bucket": {"bucket_size": 1024, "bucket_dtype": "bf16"}, "patch": {}}
    )
    assert isinstance(syncer, BucketWeightSyncer)
    assert (syncer.bucket_size, syncer.bucket_dtype, syncer.comm_options) == (1024, torch.bfloat16, None)
    cfg = {"type": "patch", "init_sync": {"enabled": True}, "use_ring_sync": True, "nccl_max_ctas": 4}
    syncer = WeightSyncer.create(OmegaConf.create(cfg))
    assert isinstance(syncer, PatchWeightSyncer)
    assert syncer.init_sync_enabled
    assert syncer.comm_options is not None
    assert (syncer.comm_options.use_ring_broadcast, syncer.comm_options.accel_max_ctas) == (True, 4)
    with pytest.raises(ValueError, match="Unsupported weight syncer type: 'full'"):
        WeightSyncer.create({"type": "full"})
    with pytest.raises(ConfigError, match="no option 'bucket_sise': 'bucket_size', perhaps"):
        WeightSyncer.create({"type": "bucket", "bucket_sise": 3})
    for wrong in [{"bucket_size": 0}, {"bucket_dtype": "int8"}, {"bucket_dtype": "fp31"}]:
        with pytest.raises(ConfigError):
            WeightSyncer.create({"type": "bucket", **wrong})


async def test_ends_that_are_not_initialised_say_so() -> None:
    for kind in (BucketWeightSyncer, PatchWeightSyncer):
        syncer = kind()
        assert not syncer.sender_initialized()
        assert not syncer.receiver_initialized()
        with pytest.raises(RuntimeError, match=r"await init_sender\(\) first"):
            await syncer.sync({}, asyncio.Queue().put, 1)
    with pytest.raises(RuntimeError, match=r"await init_sender\(\) first"):
        BucketWeightSyncer().iter_buckets({}, 1)
    with pytest.raises(RuntimeError, match=r"await init_receiver\(\) first"):
        await PatchWeightSyncer().apply({}, asyncio.Queue().get)
    with pytest.raises(ValueError, match="needs recv="):
        await PatchWeightSyncer().init_sender({}, None, asyncio.Queue().put)
    with pytest.raises(ValueError, match="needs send="):
        await PatchWeightSyncer().init_receiver({}, asyncio.Queue().get)
