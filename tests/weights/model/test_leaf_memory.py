"""A model's tensors read and written as one packed region."""

from __future__ import annotations

import pytest
import torch

from rlinf_async.weights import Manifest, ParamTree
from rlinf_async.weights.model.leaf_memory import LeafMemory


def a_model() -> dict[str, torch.Tensor]:
    return {
        "a": torch.arange(6.0),
        "b": torch.arange(200, dtype=torch.int16).view(10, 20),
        "c": torch.empty(0),
        "d": torch.tensor([True, False]),
    }


def packed(manifest: Manifest, model: dict[str, torch.Tensor]) -> torch.Tensor:
    region = torch.zeros(manifest.nbytes, dtype=torch.uint8)
    for path, view in manifest.views(region).items():
        view.copy_(model[path[0]])
    return region


@pytest.mark.parametrize("cast", [None, torch.bfloat16])
@pytest.mark.parametrize(
    ("begin", "end"), [(0, 1024), (0, 16), (8, 24), (256, 656), (300, 302), (512, 1024), (900, 910)]
)
def test_any_stretch_is_read_as_it_would_lie(cast: torch.dtype | None, begin: int, end: int) -> None:
    model = a_model()
    tree = ParamTree.of(model)
    manifest = Manifest.of(tree, cast)
    memory = LeafMemory(manifest, list(tree.tensors.values()), "cpu")
    assert manifest.nbytes == 1024
    assert torch.equal(memory.read(begin, end), packed(manifest, model)[begin:end])


def test_what_is_written_is_there_again_and_again() -> None:
    model = a_model()
    tree = ParamTree.of(model)
    manifest = Manifest.of(tree)
    memory = LeafMemory(manifest, list(tree.tensors.values()), "cpu")
    expected = packed(manifest, model)
    for begin, end in [(0, 1024), (4, 8), (256, 456), (260, 270), (256, 456)]:
        with memory.edit(begin, end) as octets:
            octets ^= 1
        expected[begin:end] ^= 1
        assert torch.equal(memory.read(0, 24), expected[:24])
        assert torch.equal(memory.read(256, 656), expected[256:656])
    assert model["b"].shape == (10, 20)
    assert torch.equal(packed(manifest, model)[256:656], expected[256:656])


def test_what_needs_no_copy_is_not_copied() -> None:
    model = a_model()
    tree = ParamTree.of(model)
    memory = LeafMemory(Manifest.of(tree), list(tree.tensors.values()), "cpu")
    assert memory.read(4, 12).data_ptr() == model["a"].data_ptr() + 4
