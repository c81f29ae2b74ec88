"""Places of destinations: every tensor and value, once, whatever holds them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import PersistentTensorDict, TensorDict, TensorDictParams
from torch import nn

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights.model.places import Places
from tests.weights.ends import Tied


def names(destination: Any) -> dict[str, int]:
    """By path, how many places there are."""
    return {".".join(path): len(places) for path, places in Places.of(destination).tensors.items()}


def test_a_module_has_its_parameters_buffers_and_state_under_each_of_their_names() -> None:
    class Stateful(Tied):
        def set_extra_state(self, state: Any) -> None:
            self.state = state

    model = nn.ModuleDict({"a": Stateful()})
    model["a"].register_buffer("mask", torch.zeros(1), persistent=False)
    model["a"].register_parameter("none", None)
    found = Places.of(model)
    assert {".".join(path) for path in found.tensors} == {f"a.{name}" for name in (*Tied().state_dict(), "mask")}
    assert found.tensors[("a", "head", "weight")][0].tensor is found.tensors[("a", "layers", "0", "weight")][0].tensor
    (path, value), *others = found.values.items()
    assert (path, others) == (("a", "_extra_state"), [])
    assert value.get() is None, "it takes a state, and gives none"
    value.put(5)
    assert model["a"].state == 5


def test_modules_mappings_and_tensordicts_are_walked_in_any_nesting() -> None:
    tensor = torch.zeros(1)
    nested = {"a": {"b.c": tensor}, ("d", "e.f"): tensor, "m": nn.Linear(1, 1), "t": TensorDict({"x": {"y": tensor}})}
    assert set(names(nested)) == {"a.b.c", "d.e.f", "m.weight", "m.bias", "t.x.y"}
    module = nn.Module()
    module.params = TensorDictParams(TensorDict({"a": {"b": torch.zeros(2)}, "c": torch.zeros(2)}))
    assert names(module) == {"params.a.b": 1, "params.c": 1}
    place = Places.of(module).tensors[("params", "a", "b")][0]
    assert place.tensor is module.params["a", "b"]
    assert place.owner.get(place.key) is place.tensor


def test_what_is_no_tensor_is_a_value_that_can_be_read_and_written() -> None:
    destination = {"a": {"step": 1}, "t": TensorDict({"note": "x"}), "_extra_state": torch.zeros(1), "none": None}
    values = Places.of(destination).values
    assert set(values) == {("a", "step"), ("t", "note"), ("_extra_state",), ("none",)}
    assert [values["a", "step"].get(), values["t", "note"].get()] == [1, "x"]
    values["a", "step"].put(2)
    values["t", "note"].put("y")
    assert (destination["a"]["step"], destination["t"]["note"]) == (2, "y")  # type: ignore[index,call-overload]


@pytest.mark.parametrize("dim", [0, 1])
def test_every_member_of_a_lazy_stack_is_a_place_of_its_own(dim: int) -> None:
    members = [TensorDict({"a": torch.zeros(2, 3), "n": {"b": torch.zeros(2)}}, batch_size=2) for _ in range(3)]
    stack = TensorDict({"s": TensorDict.lazy_stack(members, dim)}, batch_size=[])
    places = Places.of(stack).tensors
    assert names(stack) == {"s.a": 3, "s.n.b": 3}
    assert all(place.tensor is member["a"] for place, member in zip(places["s", "a"], members, strict=True))
    leaf = torch.arange(18).view((3, 2, 3) if dim == 0 else (2, 3, 3))
    for index, place in enumerate(places["s", "a"]):
        assert torch.equal(place.of(leaf), leaf.select(dim, index))
    assert str(places["s", "a"][2]) == "'s.a' (member 2 of the stack)"
    with pytest.raises(WeightMismatch, match=r"in a stack of 3 along dimension \d in .*, and has shape \[4\] in the"):
        places["s", "a"][0].of(torch.zeros(4))


def test_stacks_of_stacks_and_of_parameters_lead_to_the_members_tensors() -> None:
    inner = [TensorDict.lazy_stack([TensorDict(a=torch.zeros(2)) for _ in range(2)]) for _ in range(3)]
    outer = TensorDict.lazy_stack(inner)
    places = Places.of(outer).tensors["a",]
    leaf = torch.arange(12.0).view(3, 2, 2)
    for place, values in zip(places, leaf.view(6, 2), strict=True):
        place.tensor.copy_(place.of(leaf))
        assert torch.equal(place.tensor, values)
    assert torch.equal(outer["a"], leaf)
    layers = [nn.Linear(2, 2) for _ in range(3)]
    found = Places.of(TensorDict.from_modules(*layers, lazy_stack=True)).tensors["weight",]
    assert [place.tensor.data_ptr() for place in found] == [layer.weight.data_ptr() for layer in layers]


class Anew(Mapping[str, Any]):
    """Gives a copy at every look."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __getitem__(self, key: str) -> torch.Tensor:
        return self._tensor.clone()

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


def test_what_is_made_anew_at_every_look_is_refused(tmp_path: Path) -> None:
    plain = TensorDict({"a": torch.zeros(4)}, batch_size=4)
    holders: list[Any] = [Anew(torch.zeros(4)), plain._get_sub_tensordict(torch.tensor([0, 2]))]
    if importlib.util.find_spec("h5py"):
        holders.append(PersistentTensorDict.from_dict(plain, tmp_path / "weights.h5"))
    for holder in holders:
        found = Places.of({"x": holder})
        assert not found.tensors
        assert found.refused["x", "a"].startswith(f"is made anew by {type(holder).__name__} at every look")


def test_keys_that_are_no_strings_and_paths_that_are_there_twice_are_refused() -> None:
    with pytest.raises(WeightMismatch, match="keys of weights are strings; got 3 in 'a'"):
        Places.of({"a": {3: torch.zeros(1)}})
    with pytest.raises(WeightMismatch, match=r"'a\.b' is there twice, once dotted and once nested"):
        Places.of({"a.b": torch.zeros(1), "a": {"b": torch.zeros(1)}})
