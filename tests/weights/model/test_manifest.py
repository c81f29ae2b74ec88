"""Manifests: both sides compute the same places, and report where two differ."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
import torch
from hypothesis import given, settings, strategies as st

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights import ParamTree
from rlinf_async.weights.model.manifest import ALIGNMENT, Manifest, dtype_of
from tests._support.weight_parts import name_of

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64]


def tree_of(**tensors: Any) -> ParamTree:
    return ParamTree.of(tensors)


@st.composite
def trees(draw: st.DrawFn) -> ParamTree:
    names = draw(st.lists(st.text("abcé ", min_size=1), unique=True, max_size=6))
    shapes = st.lists(st.integers(0, 5), max_size=3)
    found: dict[str, Any] = {
        name: torch.randint(0, 2, draw(shapes)).to(draw(st.sampled_from(DTYPES))) for name in names
    }
    if found and draw(st.booleans()):
        found["tied"] = next(iter(found.values()))
    return ParamTree.of(found)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(tree=trees(), cast=st.sampled_from([None, torch.bfloat16, "float64"]))
def test_leaves_lie_apart_and_aligned_and_what_is_packed_is_read(tree: ParamTree, cast: Any) -> None:
    manifest = Manifest.of(tree, cast)
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    end = 0
    for leaf in manifest.leaves:
        assert leaf.offset >= end
        assert leaf.offset % ALIGNMENT == 0
        end = leaf.offset + leaf.nbytes
    assert end <= manifest.nbytes
    memory = torch.full((manifest.nbytes,), 0xEE, dtype=torch.uint8)
    views = manifest.views(memory)
    for path, view in views.items():
        view.copy_(tree.tensors[path])
    for path, view in Manifest.from_bytes(manifest.to_bytes()).views(memory).items():
        assert torch.equal(view, tree.tensors[path].to(view.dtype))
    assert views.keys() == tree.tensors.keys()


def test_views_of_plain_memory_are_memory() -> None:
    manifest = Manifest.of(tree_of(a=torch.ones(2, 3), b=torch.ones(1, dtype=torch.int8)))
    memory = bytearray(manifest.nbytes)
    views = manifest.views(memory)
    views[("b",)].fill_(7)
    views[("a",)].zero_()
    assert memory[256] == 7
    assert views[("a",)].is_contiguous()
    assert views[("a",)].shape == (2, 3)
    assert Manifest.of(ParamTree({})).views(bytearray()) == {}


def test_only_floating_point_is_cast() -> None:
    tree = tree_of(a=torch.ones(3), b=torch.ones(3, dtype=torch.int64), c=torch.ones(3, dtype=torch.bool))
    told = {name_of(leaf.path): (leaf.dtype, leaf.transport_dtype) for leaf in Manifest.of(tree, "bfloat16").leaves}
    assert told == {"a": ("float32", "bfloat16"), "b": ("int64", "int64"), "c": ("bool", "bool")}
    by_name = Manifest.of(tree_of(a=torch.ones(3), b=torch.ones(3)), lambda name, _: "float16" if name == "a" else None)
    assert [leaf.transport_dtype for leaf in by_name.leaves] == ["float16", "float32"]
    with pytest.raises(ValueError, match="no dtype 'float31'"):
        Manifest.of(tree, "float31")
    with pytest.raises(ValueError, match=r"floating-point dtype; got torch\.int8 for 'a'"):
        Manifest.of(tree, torch.int8)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"a": torch.ones(2)}, "'b' is missing on the other side"),
        ({"a": torch.ones(2), "b": torch.ones(3), "c": torch.ones(1)}, "'c' is on the other side only"),
        ({"a": torch.ones(2), "b": torch.ones(4)}, r"'b' is float32\[3\] here and float32\[4\] there"),
        ({"a": torch.ones(2), "b": torch.ones(3).half()}, r"'b' is float32\[3\] here and float16\[3\] there"),
    ],
)
def test_manifests_that_differ_name_the_key(other: dict[str, Any], words: str) -> None:
    manifest = Manifest.of(tree_of(a=torch.ones(2), b=torch.ones(3)))
    manifest.check(Manifest.of(tree_of(b=torch.zeros(3), a=torch.zeros(2))))
    with pytest.raises(WeightMismatch, match=words) as raised:
        manifest.check(Manifest.of(ParamTree.of(other)))
    assert isinstance(raised.value, KeyError)


def test_a_difference_of_ties_or_of_casts_is_named() -> None:
    one = torch.ones(2)
    tied, apart = Manifest.of(tree_of(a=one, b=one)), Manifest.of(tree_of(a=one, b=torch.ones(2)))
    with pytest.raises(WeightMismatch, match="'b' is tied to 'a' here and to nothing there"):
        tied.check(apart)
    with pytest.raises(WeightMismatch, match=r"float32\[2\] \(sent as bfloat16\) there"):
        apart.check(Manifest.of(tree_of(a=one, b=torch.ones(2)), torch.bfloat16))


def test_many_differences_are_counted() -> None:
    with pytest.raises(WeightMismatch, match="'l4' is missing on the other side; and 5 more"):
        Manifest.of(tree_of(**{f"l{i}": torch.ones(1) for i in range(10)})).check(Manifest.of(ParamTree({})))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff",
        msgpack.packb([9, [], []]),
        msgpack.packb([1, [[["a"], "float32", "Tensor", [1]]], []]),
        msgpack.packb([1, [[["a"], "float32", "float32", [-1]]], []]),
        msgpack.packb([1, [], [[["a"], ["b"]]]]),
    ],
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(WeightMismatch, match="no manifest of weights"):
        Manifest.from_bytes(data)


def test_memory_that_does_not_do_is_refused() -> None:
    manifest = Manifest.of(tree_of(a=torch.ones(2)))
    for memory, words in [
        (torch.empty(255, dtype=torch.uint8), "need 256 bytes; the memory has 255"),
        (torch.empty(256), "one dimension of uint8"),
        (torch.empty(300, dtype=torch.uint8)[1:], "begins at byte 1"),
    ]:
        with pytest.raises(ValueError, match=words):
            manifest.views(memory)


def test_a_sparse_tensor_is_refused_by_name() -> None:
    with pytest.raises(WeightMismatch, match=r"'a' is torch\.sparse_coo, and only dense tensors travel"):
        Manifest.of(tree_of(a=torch.ones(2).to_sparse()))


def test_a_dtype_has_its_name() -> None:
    assert dtype_of("torch.float32") is dtype_of("float32") is torch.float32
