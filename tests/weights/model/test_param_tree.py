"""Parameter trees of every source of weights: sorted, uncopied, tied tensors once."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from tensordict import NonTensorData, TensorDict
from torch import nn

from rlinf_async.weights.model.param_tree import ParamTree, are_tied, name_of, path_of


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("cache", torch.zeros(2), persistent=False)


def test_a_module_gives_parameters_and_persistent_buffers_sorted_and_tied_ones_once() -> None:
    model = Tied()
    tree = ParamTree.of(model)
    assert [name_of(path) for path in tree.tensors] == [
        "embed.weight",
        "norm.bias",
        "norm.num_batches_tracked",
        "norm.running_mean",
        "norm.running_var",
        "norm.weight",
    ]
    assert tree.aliases == {("head", "weight"): ("embed", "weight")}
    assert tree[("head", "weight")] is model.embed.weight  # no copy
    assert tree.to_state_dict().keys() == model.state_dict().keys()
    assert tree.nbytes == sum(t.nbytes for name, t in model.state_dict().items() if name != "head.weight")


def sources() -> list[Any]:
    a, b = torch.arange(3.0), torch.arange(4)
    return [
        {"x.a": a, "x.b": b},
        {"x": {"b": b, "a": a}},
        TensorDict({"x": {"a": a, "b": b}}),
        {"x": TensorDict({"a": a, "b": b})},
        TensorDict({"x.a": a, "x.b": b}),
        ParamTree({("x", "b"): b, ("x", "a"): a}),
        {"x": {"a": a.numpy(), "b": b.numpy()}},
    ]


@pytest.mark.parametrize("source", sources())
def test_dotted_and_nested_dicts_and_tensordicts_are_the_same_tree(source: Any) -> None:
    tree = ParamTree.of(source)
    assert list(tree.tensors) == [("x", "a"), ("x", "b")]
    assert tree[("x", "a")].tolist() == [0, 1, 2]
    assert list(tree.to_nested()) == ["x"]
    assert list(tree.to_state_dict()) == ["x.a", "x.b"]
    assert tree.to_tensordict()["x", "b"].tolist() == [0, 1, 2, 3]


def test_only_the_same_memory_seen_in_the_same_way_is_tied() -> None:
    whole = torch.arange(6.0)
    tree = ParamTree.of({"a": whole, "b": whole[:], "half": whole[:3], "square": whole.view(2, 3), "e": torch.empty(0)})
    assert tree.aliases == {("b",): ("a",)}
    assert len(tree) == 4


def test_empty_and_meta_tensors_are_tied_only_if_they_are_the_same_object() -> None:
    meta = torch.empty(3, device="meta")
    tree = ParamTree.of({"a": meta, "b": meta, "c": torch.empty(3, device="meta"), "d": torch.empty(0)})
    assert tree.aliases == {("b",): ("a",)}


def test_extra_state_and_other_values_are_kept_apart_and_numbers_are_tensors() -> None:
    class Normaliser(nn.Module):
        def get_extra_state(self) -> Any:
            return torch.tensor(3)  # of whatever type it is

        def set_extra_state(self, state: Any) -> None:
            raise AssertionError

    tree = ParamTree.of({"m": Normaliser(), "note": "x", "step": 3, "scale": numpy.float32(2)})
    assert set(tree.extra) == {("m", "_extra_state"), ("note",)}
    assert tree[("step",)].item() == 3
    tree = ParamTree.of(TensorDict({"a": {"note": NonTensorData("x")}}))
    assert tree.extra == {("a", "note"): "x"}
    assert tree.to_tensordict()["a", "note"] == "x"


def test_what_is_selected() -> None:
    model = Tied()
    model.embed.weight.requires_grad_(False)
    trainable = ParamTree.of(model, "trainable")
    assert not {path_of("embed.weight"), path_of("head.weight")} & {path for path, _ in trainable.items()}
    assert path_of("norm.running_mean") in trainable  # changes in training, too
    chosen = ParamTree.of(model, lambda name, tensor: name.startswith("head"))
    assert list(chosen.tensors) == [("head", "weight")]
    assert list(ParamTree.of(ParamTree.of(model), lambda name, _: name == "head.weight").tensors) == [
        ("head", "weight")
    ]
    with pytest.raises(ValueError, match="select="):
        ParamTree.of(model, "some")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({1: torch.ones(1)}, "keys of weights are strings; got 1"),
        ({"a": {2: torch.ones(1)}}, "got 2 in 'a'"),
        ({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, "'a.b' is there twice"),
        ({"a": torch.ones(1), "a.b": torch.ones(1)}, "'a' is a value and cannot also have 'a.b' below it"),
    ],
)
def test_keys_that_make_no_tree_are_named(source: Any, words: str) -> None:
    with pytest.raises(KeyError, match=words):
        ParamTree.of(source)


def test_a_source_of_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match="Unsupported source type for weights: <class 'int'>"):
        ParamTree.of(3)


def test_sparse_tensors_have_no_bytes_that_travel() -> None:
    assert ParamTree.of({"a": torch.ones(2), "b": torch.ones(2).to_sparse()}).nbytes == 8


def test_tied_tensors_are_one_memory_seen_in_one_way() -> None:
    whole = torch.arange(6.0)
    assert are_tied(whole, whole[:])
    assert not are_tied(whole, whole.view(2, 3))
    assert not are_tied(whole, whole.clone())
    assert are_tied(meta := torch.empty(3, device="meta"), meta)
