"""RLinf's rules in RLinf's syncers: its messages, names, defaults and configurations."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from rlinf_async._core import codec
from rlinf_async.errors import WeightMismatch
from rlinf_async.rlinf.sending import Sending
from rlinf_async.weights import BucketWeightSyncer, PatchWeightSyncer, WeightSyncer
from tests.rlinf.two_ends import Net, Wire, bits, coming, meet, versions


async def fail(*arguments: Any) -> Any:
    pytest.fail("a bucket syncer's inits communicate nothing")


async def nowhere(message: Any) -> None:
    pass


def described(bucket: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {name: (tensor.dtype, tensor.tolist()) for name, tensor in bucket.items()}


async def both(**options: Any) -> tuple[Any, Any]:
    sender, receiver = BucketWeightSyncer(**options), BucketWeightSyncer(**options)
    await sender.init_sender({}, None, fail, fail)
    await receiver.init_receiver({}, fail, fail)
    return sender, receiver


# -- buckets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [{"w": torch.zeros(2)}, {}, None])
async def test_the_inits_of_a_bucket_syncer_send_and_receive_nothing(state: Any) -> None:
    sender, receiver = BucketWeightSyncer(), BucketWeightSyncer()
    await sender.init_sender(state, ["w"], send=fail, recv=fail)
    await receiver.init_receiver(state, recv=fail)
    assert sender.sender_initialized()
    assert receiver.receiver_initialized()


async def test_buckets_are_applied_without_an_init_of_the_receiver() -> None:
    sender, _ = await both()
    wire, target = Wire(), {"w": torch.zeros(2)}
    await sender.sync({"w": torch.ones(2)}, wire.send, 3)
    assert await BucketWeightSyncer().apply(target, wire.there.get) == 3
    assert target["w"].tolist() == [1, 1]


WEIGHTS = {
    "b.weight": torch.arange(4.0),
    "a-b": torch.full((3,), 0.5),
    "a.steps": torch.tensor(7),
    "a.weight": torch.ones(2, 2),
    "a._extra_state": torch.ones(9),
}


async def test_iter_buckets_gives_rlinfs_buckets_in_the_order_of_their_names() -> None:
    syncer = BucketWeightSyncer(bucket_size=14, bucket_dtype="bf16", bucket_device="cpu")
    await syncer.init_sender(WEIGHTS, ["b.weight", "a.weight", "a.steps", "a-b", "a._extra_state", "gone"], fail)
    for version in (3, torch.tensor(3)):
        first, second = syncer.iter_buckets(WEIGHTS, version)
        assert [list(first), list(second)] == [
            ["total_buckets", "syncer_version", "a-b", "a.steps"],  # 6 + 8 bytes: a bucket ends when it is full
            ["a.weight", "b.weight"],
        ]
        assert described(first) == {
            "total_buckets": (torch.int32, 2),
            "syncer_version": (torch.int32, 3),
            "a-b": (torch.bfloat16, [0.5] * 3),
            "a.steps": (torch.int64, 7),
        }
        assert second["a.weight"].dtype is torch.bfloat16


async def test_sync_sends_those_very_buckets() -> None:
    sender, _ = await both(bucket_size=14)
    wire = Wire()
    await sender.sync(WEIGHTS, wire.send, 3)
    assert all(isinstance(bucket, dict) for bucket in wire.sent)
    assert [*map(described, wire.sent)] == [*map(described, sender.iter_buckets(WEIGHTS, 3))]


async def test_a_mark_travels_with_its_message() -> None:
    sender, _ = await both()
    ((bucket,),) = (await versions(sender, Net(), [3])).values()
    again = codec.decode(codec.encode(bucket).to_bytes())
    assert list(again) == list(bucket)
    assert again.mark == bucket.mark == (Sending(3, 0, bucket.mark[0].sender), 0)


@pytest.mark.parametrize("load_instant", [False, True])
async def test_buckets_that_a_callback_has_made_anew_are_applied_as_rlinf_does(load_instant: bool) -> None:
    source, target = Net(), Net()
    sender, receiver = await both(bucket_size=2000, load_instant=load_instant)
    for version in (4, 4, 2):  # whatever their number
        buckets = [dict(bucket) for bucket in sender.iter_buckets(source.step().state_dict(), version)]
        assert len(buckets) > 2
        assert await receiver.apply(target, coming(*buckets)) == receiver.version == version
        assert bits(target) == bits(source)
    with pytest.raises(WeightMismatch, match="not the first of its version"):
        await receiver.apply(target, coming(buckets[1]))
    (marked,) = (await versions(sender, source, [1])).values()
    assert await receiver.apply(target, coming(*buckets[:2], *marked)) == 1  # the first ones were given up
    assert bits(target) == bits(source)


@pytest.mark.parametrize("load_instant", [False, True])
async def test_names_that_the_receiver_lacks_are_skipped_by_buckets_with_one_warning(
    load_instant: bool, caplog: pytest.LogCaptureFixture
) -> None:
    sender, receiver = await both(bucket_size=1, load_instant=load_instant)
    target = {"w": torch.zeros(2), "own": torch.full((1,), 5.0)}
    for version in (1, 2):
        wire = Wire()
        await sender.sync({"w": torch.full((2,), float(version)), "head": torch.ones(3)}, wire.send, version)
        assert await receiver.apply(target, wire.there.get) == version
        assert {name: tensor.tolist() for name, tensor in target.items()} == {"w": [version] * 2, "own": [5]}
    (record,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "['head']" in record.getMessage()


async def test_names_that_the_sender_lacks_are_skipped_by_buckets_unless_all_are() -> None:
    syncer, wire = BucketWeightSyncer(), Wire()
    await syncer.init_sender(None, ["w", "gone"], fail)  # type: ignore[arg-type]
    await syncer.sync({"w": torch.ones(2), "other": torch.ones(3)}, wire.send, 1)
    assert [list(bucket)[2:] for bucket in wire.sent] == [["w"]]
    with pytest.raises(ValueError, match="No parameters to sync"):
        await syncer.sync({"other": torch.ones(3)}, wire.send, 2)


@pytest.mark.parametrize("kind", [BucketWeightSyncer, PatchWeightSyncer])
async def test_no_names_at_all_are_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="param_names_need_sync= must not be empty"):
        await kind().init_sender({"w": torch.ones(2)}, [], fail, fail)


@pytest.mark.parametrize(
    ("is_agent", "names", "sent"),
    [
        (True, ["a.model.language_model.w", "model.language_model.w", "visual.x"], "a.model.language_model.w model.w"),
        (True, ["model.language_model.w", "model.visual.x"], "model.visual.x model.w"),
        (True, ["model.language_model.w", "visually"], "model.language_model.w visually"),
        (False, ["model.language_model.w", "visual.x"], "model.language_model.w visual.x"),
    ],
)
async def test_agents_rename_only_with_visual_keys_and_only_as_a_prefix(
    is_agent: bool, names: list[str], sent: str
) -> None:
    syncer = BucketWeightSyncer(is_agent=is_agent)
    await syncer.init_sender(None, names, fail)  # type: ignore[arg-type]
    (bucket,) = syncer.iter_buckets({name: torch.ones(1) for name in names}, 1)
    assert set(sent.split()) <= bucket.keys() <= {*sent.split(), "visual.x", "total_buckets", "syncer_version"}


class Renaming(nn.Module):
    """As a policy of RLinf's does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        assert not strict
        return super().load_state_dict({f"inner.{name}": value for name, value in state_dict.items()}, strict, assign)


@pytest.mark.parametrize("load_instant", [False, True])
async def test_a_models_own_load_state_dict_is_called(load_instant: bool) -> None:
    sender, receiver = await both(bucket_size=1, load_instant=load_instant)
    source, model, wire = nn.Linear(2, 2), Renaming(), Wire()
    await sender.sync(source.state_dict(), wire.send, 1)
    await receiver.apply(model, wire.there.get)
    assert bits(model.inner) == bits(source)


# -- patches ----------------------------------------------------------------------------------------------------------


async def test_a_patch_syncers_inits_say_what_rlinfs_say() -> None:
    source, target, wire = Net(), Net().bfloat16(), Wire()
    sender, receiver = PatchWeightSyncer(), PatchWeightSyncer()
    await receiver.init_receiver(target.state_dict(), fail, wire.back.put)
    hello = wire.back.get_nowait()
    assert isinstance(hello, dict)
    assert sorted(hello) == ["ordered_keys", "original_shapes", "receiver_dtypes"]
    assert hello["ordered_keys"] == list(target.state_dict())
    assert hello["original_shapes"]["head.weight"] == torch.Size([30, 40])
    assert hello["receiver_dtypes"]["head.weight"] is torch.bfloat16
    await sender.init_sender(source.state_dict(), None, fail, coming(hello))
    # Without a mark, as a callback may have made it: nobody knows what the receiver has, so all is sent.
    await sender.init_sender(source.state_dict(), None, fail, coming(dict(hello)))
    await sender.sync(source.state_dict(), wire.send, 1)
    assert wire.sent[0].base is None


@pytest.mark.parametrize("prefixes", [None, ["head", "back.weight"]])
async def test_the_first_weights_of_a_patch_syncer_are_rlinfs_buckets(prefixes: Any) -> None:
    source, target, wire = Net().step(1), Net(), Wire()
    options = {"init_sync_enabled": True, "init_sync_prefixes": prefixes, "init_sync_bucket_size": 100}
    receiver, sender = PatchWeightSyncer(**options), PatchWeightSyncer(**options)
    names = {name for name in source.state_dict() if prefixes is None or name.startswith(("head.", "back."))}
    hello = {
        "ordered_keys": list(target.state_dict()),
        "original_shapes": {name: tensor.shape for name, tensor in target.state_dict().items()},
        "receiver_dtypes": {name: tensor.dtype for name, tensor in target.state_dict().items()},
    }
    await sender.init_sender(source.state_dict(), None, wire.send, coming(hello))
    assert len(wire.sent) == int(wire.sent[0]["total_buckets"]) > 1
    assert int(wire.sent[0]["syncer_version"]) == 0
    assert {name for bucket in wire.sent for name in bucket} == names | {"total_buckets", "syncer_version"}
    await receiver.init_receiver(target.state_dict(), wire.there.get, nowhere)
    assert {name: bits(target)[name] for name in names} == {name: bits(source)[name] for name in names}


async def test_a_prefix_is_a_key_or_what_is_above_it_and_each_of_them_is_found() -> None:
    weights = {"head.w": torch.ones(1), "head2.w": torch.ones(1), "b": torch.ones(1)}
    hello = {
        "ordered_keys": list(weights),
        "original_shapes": dict.fromkeys(weights, torch.Size([1])),
        "receiver_dtypes": dict.fromkeys(weights, torch.float32),
    }
    wire = Wire()
    sender = PatchWeightSyncer(init_sync_enabled=True, init_sync_prefixes=["head", "b"])
    await sender.init_sender(weights, None, wire.send, coming(hello))
    assert [sorted(bucket)[:2] for bucket in wire.sent] == [["b", "head.w"]]
    strange = PatchWeightSyncer(init_sync_enabled=True, init_sync_prefixes=["head", "hea", "c"])
    with pytest.raises(ValueError, match=r"\['hea', 'c'\], of init_sync_prefixes="):
        await strange.init_sender(weights, None, fail, coming(hello))
    with pytest.raises(ValueError, match="must not be empty"):
        PatchWeightSyncer(init_sync_enabled=True, init_sync_prefixes=[])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"head": torch.ones(3)}, "'head' is missing there"),
        ({"w": None}, "'w' is there only"),
        ({"steps": torch.tensor(1, dtype=torch.int32)}, "'steps' is torch.int32 here and torch.int64 there"),
        ({"w": torch.ones(3)}, r"'w' has shape \[3\] here and \[2\] there"),
    ],
)
async def test_names_and_forms_that_the_receiver_lacks_are_refused_by_patches(change: Any, error: str) -> None:
    weights = {"w": torch.ones(2), "v": torch.ones(2), "steps": torch.tensor(1)}
    receiver, wire = PatchWeightSyncer(), Wire()
    await receiver.init_receiver(weights, fail, wire.back.put)
    names = ["v"] if "head" in change or change.get("w", 1) is None else None  # also where they are not synchronised
    changed = {name: tensor for name, tensor in (weights | change).items() if tensor is not None}
    with pytest.raises(WeightMismatch, match=error):
        await PatchWeightSyncer().init_sender(changed, names, fail, wire.back.get)


async def test_ends_of_different_configurations_are_told_so() -> None:
    weights, wire = {"w": torch.ones(2)}, Wire()
    whole = PatchWeightSyncer(init_sync_enabled=True)
    plain = PatchWeightSyncer()
    await plain.init_receiver(weights, fail, wire.back.put)
    await whole.init_sender(weights, None, wire.send, wire.back.get)
    with pytest.raises(WeightMismatch, match=r"a patch was expected; dict has come\.  Both ends have the same"):
        await plain.apply(weights, wire.there.get)
    await whole.sync(weights, wire.send, 1)
    with pytest.raises(WeightMismatch, match=r"a bucket of tensors was expected.* EmptyWeightPatch has come"):
        await whole.init_receiver(weights, wire.there.get, nowhere)


# -- configurations ---------------------------------------------------------------------------------------------------

SECTIONS = """
use_ring_sync: false
nccl_max_ctas: null
nccl_min_ctas: null
bucket:
  bucket_size: 536870912
  bucket_dtype: null
  bucket_device: cuda
  is_agent: false
  load_instant: true
patch:
  snapshot_device: cpu
  transport_device: cuda
  delta_encoding: true
  compression: none
  init_sync:
    enabled: true
    prefixes: [vision, head.weight]
    buckets_size: 134217728
"""


def configuration(kind: str, **patch: Any) -> Any:
    return OmegaConf.merge(OmegaConf.create(SECTIONS), {"type": kind, "patch": patch})


def test_rlinfs_sections_are_taken_as_they_are() -> None:
    syncer = WeightSyncer.create(configuration("patch"))
    assert isinstance(syncer, PatchWeightSyncer)
    assert syncer.init_sync_enabled
    assert syncer.init_sync_prefixes == ("vision", "head.weight")
    assert (syncer.init_sync_bucket_size, syncer.compression_algorithm, syncer.comm_options) == (1 << 27, "none", None)
    bucket = WeightSyncer.create(configuration("bucket"))
    assert isinstance(bucket, BucketWeightSyncer)
    assert (bucket.bucket_size, bucket.bucket_dtype, bucket.load_instant) == (1 << 29, None, True)


def test_both_words_for_a_compression_are_known_and_one_wins() -> None:
    for patch, algorithm in [
        ({"compression": "zlib"}, "zlib"),
        ({"compression_algorithm": "zlib"}, "zlib"),
        ({"compression_algorithm": "zlib", "compression": "none"}, "zlib"),
    ]:
        syncer = WeightSyncer.create(configuration("patch", **patch))
        assert isinstance(syncer, PatchWeightSyncer)
        assert syncer.compression_algorithm == algorithm
    cfg = configuration("patch")
    cfg.patch.init_sync.bucket_size = 7
    syncer = WeightSyncer.create(cfg)
    assert isinstance(syncer, PatchWeightSyncer)
    assert syncer.init_sync_bucket_size == 7


@pytest.mark.parametrize("algorithm", ["nvcomp_lz4", "brotli"])
def test_a_compression_that_is_not_known_is_none_with_a_warning(
    algorithm: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert PatchWeightSyncer(compression_algorithm=algorithm).compression_algorithm == "none"
    assert repr(algorithm) in caplog.text


def test_without_a_device_it_is_the_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    bucket = WeightSyncer.create({"type": "bucket", "bucket": {"bucket_size": 1, "bucket_dtype": "BF16"}})
    patch = WeightSyncer.create({"type": "patch", "patch": {}})
    assert isinstance(bucket, BucketWeightSyncer)
    assert isinstance(patch, PatchWeightSyncer)
    assert (bucket.bucket_device.type, bucket.bucket_dtype) == ("cuda", torch.bfloat16)
    assert patch.transport_device is not None
    assert (patch.transport_device.type, patch.snapshot_device.type) == ("cuda", "cpu")


class Own(WeightSyncer):
    """A user's: two methods, as RLinf asks for."""

    async def sync(self, state_dict: Mapping[str, Any], send: Any, version: int) -> None:
        await send((version, dict(state_dict)))

    async def apply(self, model: Any, recv: Any) -> int:
        version, weights = await recv()
        model.load_state_dict(weights)
        return int(version)


async def test_a_syncer_of_ones_own_needs_no_more_than_sync_and_apply() -> None:
    source, target, wire = Net(), Net(), Wire()
    sender, receiver = Own(), Own()
    await meet(sender, receiver, source, target)
    await sender.sync(source.step().state_dict(), wire.send, 3)
    assert await receiver.apply(target, wire.there.get) == 3
    assert bits(target) == bits(source)
