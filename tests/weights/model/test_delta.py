"""Deltas between versions: bit-exact, and never larger than the version."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights import Manifest, ParamTree
from rlinf_async.weights.model import delta as codec
from rlinf_async.weights.model.delta import Delta, encode
from rlinf_async.weights.model.leaf_memory import LeafMemory

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.complex128,
    torch.float8_e4m3fn,
]


def region_of(manifest: Manifest, **tensors: torch.Tensor) -> torch.Tensor:
    region = torch.zeros(manifest.nbytes, dtype=torch.uint8)
    for path, view in manifest.views(region).items():
        view.copy_(tensors[path[0]])
    return region


@st.composite
def versions(draw: st.DrawFn) -> tuple[Manifest, torch.Tensor, torch.Tensor]:
    """Random bytes in leaves of all sizes, of which some share, from none to all, have changed."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    leaves = {
        f"l{i}": torch.zeros(draw(st.sampled_from([0, 1, 7, 100, 3000, 40_000])), dtype=draw(st.sampled_from(DTYPES)))
        for i in range(draw(st.integers(0, 6)))
    }
    manifest = Manifest.of(ParamTree.of(leaves))
    base = torch.zeros(manifest.nbytes, dtype=torch.uint8)
    for leaf in manifest.leaves:
        base[leaf.offset : leaf.offset + leaf.nbytes].random_(0, 256, generator=generator)
    new = base.clone()
    for leaf in manifest.leaves:
        share = draw(st.sampled_from([0, 0.001, 0.03, 0.2, 0.6, 1]))
        hit = torch.rand(leaf.nbytes, generator=generator) < share
        new[leaf.offset : leaf.offset + leaf.nbytes][hit] ^= 0x81
    return manifest, base, new


@settings(max_examples=60, derandomize=True, deadline=None)
@given(case=versions(), piece=st.sampled_from([1024, 8192, 1 << 20]), small=st.sampled_from([256, 1 << 16]))
def test_a_delta_is_exact_and_never_larger_than_everything(
    case: tuple[Manifest, torch.Tensor, torch.Tensor], piece: int, small: int
) -> None:
    manifest, base, new = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "_SMALL", small)
        delta = encode(manifest, base, new, piece)
        assert delta.body.numel() <= manifest.nbytes
        region = base.clone()
        delta.apply(manifest, region)
        assert torch.equal(region, new)
        delta.apply(manifest, region)  # a second time does no harm
        assert torch.equal(region, new)
        snapshot = base.clone()
        views = list(manifest.views(new).values())
        again = encode(manifest, snapshot, LeafMemory(manifest, views, "cpu"), piece, snapshot=snapshot)
        assert again.head == delta.head
        before, after = manifest.views(new), manifest.views(snapshot)
        assert all(torch.equal(octets(before[path]), octets(after[path])) for path in before)
        model = {path: view.clone() for path, view in manifest.views(base).items()}
        again.apply(manifest, LeafMemory(manifest, list(model.values()), "cpu"))
        assert all(torch.equal(octets(before[path]), octets(model[path])) for path in before)
        full = encode(manifest, None, new, piece)
        region = torch.full_like(base, 0x55)
        full.apply(manifest, region)
        after = manifest.views(region)
        assert all(torch.equal(octets(before[path]), octets(after[path])) for path in before)


def octets(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_and_negative_zero_are_values_like_others(dtype: torch.dtype) -> None:
    old = torch.tensor([float("nan"), 0.0, -0.0, 1.0], dtype=dtype).repeat(100)
    new = old.clone()
    new[1], new[2] = -0.0, 0.0
    manifest = Manifest.of(ParamTree.of({"a": old}))
    same = encode(manifest, region_of(manifest, a=old), region_of(manifest, a=old))
    assert same.body.numel() == 0  # NaN has not changed
    region = region_of(manifest, a=old)
    delta = encode(manifest, region, region_of(manifest, a=new))
    delta.apply(manifest, region)
    assert torch.equal(region, region_of(manifest, a=new))
    assert 0 < delta.body.numel() <= 32  # two positions and two values


def forms(delta: Delta) -> list[int]:
    return [form for form, *_ in codec._ENTRY.iter_unpack(codec.msgpack.unpackb(delta.head)[2])]


@pytest.mark.parametrize(
    ("every", "form", "share"),
    [(0, codec._SAME, 0), (1000, codec._GAPS, 0.002), (8, codec._GAPS, 0.26), (1, codec._DENSE, 1.0)],
)
def test_each_leaf_takes_the_form_that_is_smallest(every: int, form: int, share: float) -> None:
    old = {"a": torch.zeros(100_000, dtype=torch.bfloat16), "b": torch.zeros(100_000)}
    new = {name: tensor.clone() for name, tensor in old.items()}
    if every:
        new["a"][::every] = 1
    manifest = Manifest.of(ParamTree.of(old))
    delta = encode(manifest, region_of(manifest, **old), region_of(manifest, **new))
    assert forms(delta) == [form, codec._SAME]
    assert delta.body.numel() <= share * 200_000 + 16


def test_gaps_wider_than_sixteen_bits_are_bridged() -> None:
    old = torch.zeros(1 << 20, dtype=torch.int8)
    manifest = Manifest.of(ParamTree.of({"a": old}))
    for positions in ([65534], [65535], [65536], [0, 65536, 131072], [7, 400_000, (1 << 20) - 1]):
        new = old.clone()
        new[positions] = 3
        region = region_of(manifest, a=old)
        delta = encode(manifest, region, region_of(manifest, a=new))
        assert delta.nbytes < 128
        delta.apply(manifest, region)
        assert torch.equal(region, region_of(manifest, a=new))


def a_delta() -> tuple[Manifest, torch.Tensor, Delta]:
    old = {"a": torch.zeros(50_000), "b": torch.zeros(50_000)}
    new = {"a": old["a"].clone(), "b": old["b"].clone()}
    new["a"][::999] = 1
    new["b"][::9] = 1
    manifest = Manifest.of(ParamTree.of(old))
    region = region_of(manifest, **old)
    return manifest, region, encode(manifest, region, region_of(manifest, **new))


def damaged(delta: Delta) -> dict[str, Any]:
    digest, size, table = codec.msgpack.unpackb(delta.head)
    gaps = delta.body.clone()
    gaps[:100] = 0xFE
    escapes = delta.body.clone()
    escapes[2:4] = 0xFF

    def head(*parts: Any) -> bytes:
        return codec.msgpack.packb(parts)

    return {
        "not a delta": Delta(b"x", delta.body),
        "of other weights": Delta(head(b"1234567890123456", size, table), delta.body),
        "cut off": Delta(delta.head, delta.body[:-8]),
        "too many entries": Delta(head(digest, size, table + table[:9]), delta.body),
        "other pieces": Delta(head(digest, 1024, table), delta.body),
        "an unknown form": Delta(head(digest, size, b"\7" + table[1:]), delta.body),
        "too many values": Delta(head(digest, size, table[:1] + b"\xff\xff\xff\xff" + table[5:]), delta.body),
        "a position outside": Delta(delta.head, gaps),
        "a value less than positions": Delta(delta.head, escapes),
    }


@pytest.mark.parametrize("how", damaged(a_delta()[2]))
def test_a_damaged_or_foreign_delta_is_refused_before_anything_is_written(how: str) -> None:
    manifest, region, delta = a_delta()
    before = region.clone()
    with pytest.raises(WeightMismatch, match="delta"):
        damaged(delta)[how].apply(manifest, region)
    assert torch.equal(region, before)
