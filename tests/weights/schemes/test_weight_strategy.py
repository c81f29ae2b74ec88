"""Extraction and application strategies, against TorchRL's behaviour with tensordict."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tensordict import TensorDict, TensorDictBase
from torch import nn

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights import ParamTree
from rlinf_async.weights.model.writing import plan_update
from rlinf_async.weights.schemes.weight_strategy import WeightStrategy, _get_strategy

TO_TENSORDICT, TO_STATE_DICT = WeightStrategy("tensordict"), WeightStrategy("state_dict")


def oracle(destination: Any, weights: Any) -> None:
    """What tensordict makes of it: a view of the destination, updated in place."""
    if isinstance(weights, dict):
        weights = TensorDict(weights)
        weights = weights.unflatten_keys(".") if any("." in key for key in weights.keys()) else weights  # noqa: SIM118
    if isinstance(destination, nn.Module):
        destination = TensorDict.from_module(destination)
    elif isinstance(destination, dict):
        destination = TensorDict(destination)
        destination = destination.unflatten_keys(".")
    try:
        destination.data.update_(weights.data)
    except Exception as error:
        raise KeyError(str(error)) from error


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 2)
        self.register_buffer("mask", torch.tensor([True, False]), persistent=False)


def values(source: Any) -> dict[str, Any]:
    tree = ParamTree.of(source)
    return {name: (str(value.dtype), value.tolist()) for name, value in tree.to_state_dict().items()}


# -- extraction -------------------------------------------------------------------------------------------------------


def test_a_module_is_extracted_as_tensordict_does_it() -> None:
    model = Net()
    weights = TO_TENSORDICT.extract_weights(model)
    assert isinstance(weights, TensorDictBase)
    assert weights["head", "weight"] is model.head.weight
    assert weights["mask"] is model.mask
    state = TO_STATE_DICT.extract_weights(model)
    assert "mask" not in state
    assert state["head.weight"].data_ptr() == model.head.weight.data_ptr()


def test_other_sources_are_extracted_as_tensordict_does_it() -> None:
    flat, nested = {"a.b": torch.ones(1)}, TensorDict({"a": {"b": torch.ones(1)}})
    assert TO_TENSORDICT.extract_weights(nested) is nested
    assert list(TO_TENSORDICT.extract_weights(flat).keys()) == ["a.b"]
    assert TO_STATE_DICT.extract_weights(flat) is flat
    assert TO_STATE_DICT.extract_weights(nested)["a"]["b"].item() == 1
    tree = ParamTree.of(flat)
    assert list(TO_STATE_DICT.extract_weights(tree)) == ["a.b"]
    assert TO_TENSORDICT.extract_weights(tree)["a", "b"].item() == 1


def test_without_tensordict_nested_dicts_take_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = Net(), Net()
    monkeypatch.setitem(sys.modules, "tensordict", None)
    weights = TO_TENSORDICT.extract_weights(model)
    assert weights["head"]["weight"] is model.head.weight
    assert weights["mask"] is model.mask
    assert TO_TENSORDICT.extract_weights({"a": 1}) == {"a": 1}
    TO_TENSORDICT.apply_weights(other, weights)
    assert values(other) == values(model)
    with pytest.raises(ImportError):
        ParamTree.of(model).to_tensordict()


def test_what_cannot_be_extracted_is_refused_in_torchrls_words() -> None:
    with pytest.raises(ValueError, match="Unsupported source type for TensorDict extraction: <class 'int'>"):
        TO_TENSORDICT.extract_weights(3)
    with pytest.raises(ValueError, match="Unsupported source type for state_dict extraction: <class 'list'>"):
        TO_STATE_DICT.extract_weights([])
    with pytest.raises(ValueError, match="extract_as must be 'tensordict' or 'state_dict', got x"):
        WeightStrategy("x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Unknown strategy: x\. Must be 'tensordict' or 'state_dict'"):
        _get_strategy("x")  # type: ignore[arg-type]
    assert _get_strategy("state_dict").extract_as == "state_dict"


# -- application ------------------------------------------------------------------------------------------------------

FORMS = {
    "module's state_dict": lambda model: model.state_dict(),
    "nested dict": lambda model: ParamTree.of(model).to_nested(),
    "TensorDict": lambda model: TensorDict.from_module(model),
    "ParamTree": ParamTree.of,
    "half precision": lambda model: {
        name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in model.state_dict().items()
    },
    "some keys": lambda model: {"head.weight": model.head.weight, "body.1.running_mean": torch.ones(4)},
    "nothing": lambda model: {},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_module_takes_any_form_of_weights_as_with_tensordict(form: str) -> None:
    source, ours = Net(), Net()
    theirs, parameters = copy.deepcopy(ours), dict(ours.named_parameters())
    weights = FORMS[form](source)
    oracle(theirs, weights.to_state_dict() if isinstance(weights, ParamTree) else weights)
    TO_STATE_DICT.apply_weights(ours, weights)
    assert values(ours) == values(theirs)
    assert all(parameters[name] is parameter for name, parameter in ours.named_parameters())
    assert all(parameter.requires_grad for parameter in ours.parameters())


@st.composite
def dicts(draw: st.DrawFn) -> dict[str, Any]:
    """Nested or dotted, of few names and shapes, so that two of them often fit."""
    dtypes = st.sampled_from([torch.float32, torch.float16, torch.int64])
    found: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(["a", "b.c", "b.d", "e.f.g"]), unique=True, max_size=4)):
        shape = draw(st.sampled_from([(2,), (2,), (1,), (2, 1), ()]))
        found[name] = torch.randint(0, 9, shape).to(draw(dtypes))
    return found if draw(st.booleans()) else ParamTree.of(found).to_nested()


@settings(max_examples=150, derandomize=True, deadline=None)
@given(destination=dicts(), weights=dicts(), as_tensordict=st.tuples(st.booleans(), st.booleans()))
def test_dicts_and_tensordicts_are_updated_or_refused_as_with_tensordict(
    destination: dict[str, Any], weights: dict[str, Any], as_tensordict: tuple[bool, bool]
) -> None:
    if as_tensordict[0]:
        destination = TensorDict(ParamTree.of(destination).to_nested())  # type: ignore[assignment]
    if as_tensordict[1]:
        weights = TensorDict(ParamTree.of(weights).to_nested())  # type: ignore[assignment]
    theirs, before = copy.deepcopy(destination), values(destination)
    try:
        oracle(theirs, weights)
        fits = True
    except KeyError:
        fits = False
    tree = ParamTree.of(destination)
    # Beyond tensordict's own checks: no branch is left out, nothing is broadcast, and no fraction is cut off.
    is_right = all(
        path in tree and tree[path].shape == value.shape and torch.can_cast(value.dtype, tree[path].dtype)
        for path, value in ParamTree.of(weights).items()
    )
    assert fits or not is_right
    if is_right:
        TO_TENSORDICT.apply_weights(destination, weights)
        assert values(destination) == values(theirs)
    else:
        with pytest.raises(KeyError, match="Error updating destination: "):
            TO_TENSORDICT.apply_weights(destination, weights)
        assert values(destination) == before


def test_weights_that_do_not_fit_leave_the_model_as_it_was() -> None:
    model, source = Net(), Net()
    before = values(model)
    for wrong, words in [
        ({"head.weigth": torch.ones(2, 4)}, "'head.weigth' is not in the destination"),
        (
            {"head.weight": torch.ones(4, 2)},
            r"'head.weight' has shape \[2, 4\] in the destination and \[4, 2\] in the weights",
        ),
        (
            {"head.weight": torch.ones(4)},
            r"'head.weight' has shape \[2, 4\] in the destination and \[4\] in the weights",
        ),  # would broadcast
        (
            {"body.1.num_batches_tracked": torch.tensor(1.5)},
            "is torch.int64 in the destination, which torch.float32 in",
        ),
        ({"head.weight": torch.ones(2, 4, device="meta")}, "is on the meta device in the weights and has no memory"),
        ({"head.weight": "what"}, "is a tensor in the destination and str in the weights"),
        ({"note": "what"}, "'note' is not in the destination"),
        ({7: torch.ones(1)}, "keys of weights are strings; got 7"),
    ]:
        with pytest.raises(WeightMismatch, match=f"^Error updating destination: .*{words}"):
            TO_STATE_DICT.apply_weights(model, source.state_dict() | wrong)
        assert values(model) == before, "something was written"


def test_the_error_lists_the_keys_of_both_sides() -> None:
    with pytest.raises(KeyError, match=r"Destination keys: \['a'\], weights keys: \['b'\]"):
        TO_STATE_DICT.apply_weights({"a": torch.ones(1)}, {"b": torch.ones(1)})


def test_destinations_and_weights_of_other_types_are_refused_in_torchrls_words() -> None:
    with pytest.raises(ValueError, match="Unsupported destination type for TensorDict: <class 'int'>"):
        TO_STATE_DICT.apply_weights(3, {})
    with pytest.raises(ValueError, match=r"Unsupported weights type: <class 'torch\.nn\.modules\.linear\.Linear'>"):
        TO_STATE_DICT.apply_weights(Net(), nn.Linear(1, 1))
    TO_STATE_DICT.apply_weights(3, None)


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    return model


def test_tied_weights_are_written_once_and_two_values_for_them_are_refused() -> None:
    source, model = tied(), tied()
    update = plan_update(model, source.state_dict())
    assert len(update.targets) == 1
    update.write()
    assert torch.equal(model[1].weight, source[0].weight)
    copies = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    assert len(plan_update(model, copies).targets) == 1
    with pytest.raises(
        WeightMismatch, match=r"'0.weight' and '1.weight' are tied in the destination, and their values differ"
    ):
        plan_update(model, {"0.weight": torch.ones(2, 2), "1.weight": torch.zeros(2, 2)})
    plan_update(nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)), source.state_dict()).write()


def test_weights_that_are_the_destination_need_no_writing() -> None:
    model = Net()
    assert plan_update(model, model.state_dict()).targets == []


def test_an_expanded_destination_is_refused_and_a_transposed_one_written() -> None:
    with pytest.raises(WeightMismatch, match="expanded"):
        plan_update({"a": torch.zeros(1).expand(3)}, {"a": torch.ones(3)})
    turned = torch.zeros(2, 3).t()
    plan_update({"a": turned}, {"a": torch.arange(6.0).view(3, 2)}).write()
    assert turned.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_tensors_made_in_inference_mode_are_written() -> None:
    with torch.inference_mode():
        model = nn.Linear(2, 2)
    plan_update(model, {"weight": torch.ones(2, 2)}).write()
    assert model.weight.sum() == 4


class Counter(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.weight = nn.Parameter(torch.full((1,), float(count)))

    def get_extra_state(self) -> Any:
        return {"count": self.count}

    def set_extra_state(self, state: Any) -> None:
        self.count = state["count"]


def test_extra_state_travels_and_is_taken_back_if_some_of_it_is_refused() -> None:
    model = nn.Sequential(Counter(1), Counter(2))
    plan_update(model, nn.Sequential(Counter(3), Counter(4)).state_dict()).write()
    assert [part.count for part in model] == [3, 4]
    wrong = nn.Sequential(Counter(5), Counter(6)).state_dict() | {"1._extra_state": {}}
    with pytest.raises(KeyError, match="count"):
        plan_update(model, wrong).write()
    assert [(part.count, part.weight.item()) for part in model] == [(3, 3.0), (4, 4.0)]
    with pytest.raises(WeightMismatch, match="'_extra_state' is not in the destination"):
        plan_update(nn.Linear(1, 1), {"_extra_state": 1})


def test_values_in_a_dict_that_are_no_tensors_are_replaced() -> None:
    destination: dict[str, Any] = {"a": {"step": 1, "note": "x"}, "w": torch.zeros(1)}
    plan_update(destination, {"a.step": torch.tensor(5), "a.note": "y", "w": torch.ones(1)}).write()
    assert destination == {"a": {"step": 5, "note": "y"}, "w": torch.ones(1)}


def test_a_tensordict_has_the_extra_state_and_the_modules_of_a_dict_too() -> None:
    source, model = nn.Sequential(Counter(3), nn.Identity()), nn.Sequential(Counter(1), nn.Identity())
    for weights, destination in (
        (source, model),
        ({"policy": source}, {"policy": model}),
        ({"a.b": source}, {"a": {"b": model}}),
    ):
        model[0].count = 1
        TO_TENSORDICT.apply_weights(destination, TO_TENSORDICT.extract_weights(weights))
        assert (model[0].count, model[0].weight.item()) == (3, 3.0)
    with pytest.raises(WeightMismatch, match="keys of weights are strings; got 3"):
        TO_TENSORDICT.extract_weights({3: torch.ones(1)})
