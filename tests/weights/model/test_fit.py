"""The rules of what fits: one test each, with the words of its error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights import Manifest, ParamTree
from rlinf_async.weights.model.fit import Fit
from rlinf_async.weights.model.overlap import meeting_in_memory
from rlinf_async.weights.model.writing import adopt, plan_update


def write(destination: Any, weights: Any, **options: Any) -> None:
    plan_update(destination, weights, **options).write()


def refused(destination: Any, weights: Any, words: str, **options: Any) -> None:
    """By copy, by map and by what a manifest tells; nothing is written."""
    before = {path: tensor.clone() for path, tensor in ParamTree.of(destination).items() if not tensor.is_meta}
    for judge in (plan_update, adopt, by_manifest):
        with pytest.raises(WeightMismatch, match=f"^Error updating destination: .*{words}"):
            judge(destination, weights, **options)
    after = dict(ParamTree.of(destination).items())
    assert all(torch.equal(after[path], tensor) for path, tensor in before.items())


def by_manifest(destination: Any, weights: Any, **options: Any) -> None:
    """As receivers do that have not seen any values yet."""
    tree = ParamTree.of(weights)
    fit = Fit(destination, Manifest.of(tree), **options)
    fit.check(list(tree.tensors.values()), tree.extra)


def test_a_leaf_without_a_place_is_refused_and_a_place_without_a_leaf_keeps_what_it_has() -> None:  # K
    destination = {"a": torch.zeros(2), "b": torch.zeros(2)}
    refused(destination, {"a": torch.ones(2), "c": torch.ones(2)}, "'c' is not in the destination")
    write(destination, {"a": torch.ones(2)})
    assert [tensor.tolist() for tensor in destination.values()] == [[1, 1], [0, 0]]


def test_an_error_names_five_problems_and_the_keys_of_both_sides() -> None:
    words = "'h' is not in the destination and 3 more. Destination keys: ['a'], weights keys: ['d', 'e', 'f', "
    with pytest.raises(WeightMismatch) as raised:
        plan_update({"a": torch.zeros(1)}, {name: torch.ones(1) for name in "defghijk"})
    assert words in str(raised.value)


@pytest.mark.parametrize("shape", [(2,), (1, 2), (2, 1), ()])
def test_shapes_are_equal_and_nothing_is_broadcast(shape: tuple[int, ...]) -> None:  # S
    words = rf"'a' has shape \[2, 2\] in the destination and \[{', '.join(map(str, shape))}\] in the weights"
    refused({"a": torch.zeros(2, 2)}, {"a": torch.ones(shape)}, words)


def test_a_member_gets_its_part_and_all_members_have_to_be_there() -> None:  # S, of stacks
    members = [TensorDict(a=torch.zeros(2)) for _ in range(2)]
    stack = {"s": TensorDict.lazy_stack(members)}
    write(stack, {"s": {"a": torch.tensor([[1.0, 2], [3, 4]])}})
    assert [member["a"].tolist() for member in members] == [[1, 2], [3, 4]]
    refused(stack, {"s": {"a": torch.ones(3, 2)}}, r"'s\.a' \(member 0 of the stack\) is in a stack of 2 along")
    members[1]["b"] = torch.zeros(1)
    with pytest.raises(WeightMismatch, match=r"'s\.b' "):
        plan_update(stack, {"s.b": torch.ones(2, 1)})
    other = {"s": TensorDict.lazy_stack([TensorDict(a=torch.zeros(2)), TensorDict(a=torch.zeros(2, device="meta"))])}
    for judge in (plan_update, by_manifest):
        with pytest.raises(WeightMismatch, match=r"'s\.a' \(member 1 of the stack\) is on the meta device in the dest"):
            judge(other, {"s.a": torch.ones(2, 2)})


def test_dtypes_are_cast_where_torch_can_and_equal_ones_are_copied_bit_for_bit() -> None:  # C
    target = {"a": torch.zeros(2, dtype=torch.bfloat16)}
    write(target, {"a": torch.tensor([1.00390625, 2])})
    assert target["a"].tolist() == [1, 2]
    odd = torch.tensor([0x7FC00001, 0x7F800001, -1], dtype=torch.int32).view(torch.float32)  # NaNs, one signalling
    exact = {"a": torch.zeros(3)}
    write(exact, {"a": odd})
    assert torch.equal(exact["a"].view(torch.int32), odd.view(torch.int32))
    words = "'a' is torch.int64 in the destination, which torch.float32 in the weights cannot be cast to"
    refused({"a": torch.zeros(2).long()}, {"a": torch.ones(2)}, words)


def test_strict_dtype_refuses_every_other_dtype_and_the_error_names_the_option() -> None:  # C2
    destination = {"a": torch.zeros(2, dtype=torch.bfloat16), "b": torch.zeros(2)}
    words = "'a' is torch.bfloat16 in the destination and torch.float32 in the weights; strict_dtype=True"
    refused(destination, {"a": torch.ones(2), "b": torch.ones(2)}, words, strict_dtype=True)
    write(destination, {"b": torch.ones(2)}, strict_dtype=True)
    assert destination["b"].tolist() == [1, 1]


def stacked(dim: int) -> Any:
    return {"a": TensorDict.lazy_stack([TensorDict(x=torch.zeros(2), batch_size=2) for _ in range(2)], dim)}


def for_inference() -> Any:
    with torch.inference_mode():
        return {"a": {"x": torch.zeros(2, 2)}}


@pytest.mark.parametrize(
    ("destination", "why"),
    [
        (lambda: {"a": {"x": torch.zeros(2, 2)}}, ""),
        (lambda: stacked(0), ""),
        (lambda: stacked(1), "'a.x' (member 0 of the stack) is stacked along dimension 1, where members are not cont"),
        (lambda: {"a": {"x": torch.zeros(2, 2).bfloat16()}}, "'a.x' travels as torch.float32 and is torch.bfloat16"),
        (for_inference, "'a.x' was made under torch.inference_mode()"),
    ],
)
def test_all_of_a_destination_is_mapped_or_all_of_it_is_copied_with_the_reason(destination: Any, why: str) -> None:  # M
    there = destination() | {"b": torch.zeros(3)}
    weights = {"a": {"x": torch.tensor([[1.0, 2], [3, 4]])}, "b": torch.ones(3)}
    told = adopt(there, weights)
    assert (told[: len(why)], bool(told)) == (why, bool(why))
    assert there["a"]["x"].tolist() == [[1, 2], [3, 4]]
    assert (there["b"].data_ptr() == weights["b"].data_ptr()) == (not why)  # type: ignore[attr-defined]


def conjugated() -> torch.Tensor:
    return torch.ones(2, dtype=torch.complex64).conj()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.zeros(2, device="meta"), "is on the meta device in the destination"),
        (lambda: nn.UninitializedParameter(), "is not initialised in the destination: run the model once"),
        (lambda: torch.zeros(2).to_sparse(), "is torch.sparse_coo in the destination, and only dense"),
        (lambda: torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8), "is quantized in the destination"),
        (lambda: torch.nested.nested_tensor([torch.zeros(1), torch.zeros(1)]), "is nested in the destination"),
        (conjugated, "is a lazily conjugated or negated view in the destination"),
        (lambda: conjugated().imag, "is a lazily conjugated or negated view in the destination"),
    ],
)
def test_what_cannot_be_written_is_refused(make: Any, words: str) -> None:  # W
    for maps in (False, True):
        with pytest.raises(WeightMismatch, match=f"'a' {words}"):
            Fit({"a": make()}, ParamTree.of({"a": torch.ones(2)}), maps=maps)


def test_an_expanded_tensor_is_refused_unless_its_memory_is_replaced() -> None:  # W
    destination = {"a": torch.zeros(1).expand(3)}
    with pytest.raises(WeightMismatch, match="'a' is an expanded tensor in the destination, whose elements share"):
        plan_update(destination, {"a": torch.arange(3.0)})
    assert not adopt(destination, {"a": torch.arange(3.0)})
    assert destination["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("size", [3, 1 << 19])
def test_inference_tensors_are_written_beside_others(size: int) -> None:  # W2
    with torch.inference_mode():
        made = torch.zeros(size)
    destination = {"a": made, "b": nn.Parameter(torch.zeros(size))}
    write(destination, {"a": torch.ones(size), "b": torch.ones(size)})
    assert all(bool((tensor == 1).all()) for tensor in destination.values())


def test_tensors_that_are_tied_there_take_equal_values_and_no_others() -> None:  # T
    tensor = torch.zeros(2).bfloat16()
    words = "'a' and 'b' are tied in the destination, and their values differ: tie them in the weights too"
    refused({"a": tensor, "b": tensor}, {"a": torch.ones(2), "b": torch.zeros(2)}, words)
    write({"a": tensor, "b": tensor}, {"a": torch.tensor([1.0, 2]), "b": torch.tensor([1.0000001, 2])})
    assert tensor.tolist() == [1, 2], "they are equal as soon as they are cast"
    odd = torch.tensor([0x7FFF, 0x3F80], dtype=torch.int16).view(torch.bfloat16)
    write({"a": tensor, "b": tensor}, {"a": odd, "b": torch.tensor([float("nan"), 1.0])})
    assert str(tensor.tolist()) == "[nan, 1.0]", "which NaN a cast makes is the processor's business"
    tensor.zero_()
    refused({"a": tensor, "b": tensor}, {"a": odd, "b": torch.tensor([2.0, 1.0])}, words)
    members = TensorDict.lazy_stack([TensorDict(a=tensor), TensorDict(a=tensor)])
    words = r"'a' \(member 0 of the stack\) and 'a' \(member 1 of the stack\) are tied in the destination"
    with pytest.raises(WeightMismatch, match=words):
        plan_update(members, {"a": torch.tensor([[1.0, 2], [3, 4]])})


def test_memory_that_is_shared_in_part_is_refused_by_both_names() -> None:  # O
    base = torch.zeros(6)
    words = "'a' and 'b' share a part of their memory in the destination: give each memory of its own"
    refused({"a": base[:4], "b": base[2:]}, {"a": torch.ones(4), "b": torch.ones(4)}, words)
    refused({"a": base, "b": base.view(2, 3).t()}, {"a": torch.ones(6), "b": torch.ones(3, 2)}, words)
    with pytest.raises(WeightMismatch, match=words):
        adopt({"a": base, "b": base[:1].expand(3)}, {"a": torch.ones(6), "b": torch.ones(3)})
    columns = base.view(2, 3)
    write({"a": columns[:, :1], "b": columns[:, 1:]}, {"a": torch.ones(2, 1), "b": torch.full((2, 2), 2.0)})
    assert base.tolist() == [1, 2, 2, 1, 2, 2]
    write({"a": base[:3], "b": base[3:]}, {"a": torch.zeros(3), "b": torch.ones(3)})
    assert base.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_place_without_a_leaf_shares_no_part_of_its_memory_with_one_that_is_written() -> None:  # O
    base = torch.zeros(6)
    refused({"a": base[:4], "b": base[2:]}, {"b": torch.ones(4)}, "'a' and 'b' share a part of their memory")
    tied = {"a": base[:4], "aa": base[:4], "b": base[2:]}
    refused(tied, {"b": torch.ones(4)}, "'a' and 'b' share a part of their memory")
    write({"a": base[:3], "b": base[2:], "c": torch.zeros(1)}, {"c": torch.ones(1)})


@pytest.mark.parametrize("put", [write, adopt])
@pytest.mark.parametrize("shape", [(2,), (2, 1, 2)])
def test_a_second_name_for_a_memory_gets_what_the_first_one_gets(shape: tuple[int, ...], put: Any) -> None:  # T
    memory = torch.zeros(shape)
    destination = {"a": memory, "b": memory.view(-1).view(shape)}
    put(destination, {"b": torch.ones(shape)})
    assert [tensor.unique().tolist() for tensor in destination.values()] == [[1], [1]]
    memory = torch.zeros(2)
    refused({"a": memory, "b": memory.view_as(memory)}, dict(zip("ab", torch.eye(2), strict=True)), "are tied")


def test_values_of_any_form_are_compared_for_tied_tensors() -> None:  # T
    memory = torch.zeros(1)
    destination = {"a": memory, "b": memory.view_as(memory)}
    for value in (torch.ones(4)[::2][:1], torch._neg_view(-torch.ones(1))):
        write(destination, {"a": torch.ones(1), "b": value})
        refused(destination, {"a": torch.zeros(1), "b": value}, "'a' and 'b' are tied")


@pytest.mark.parametrize("weights", [torch.ones(2, device="meta"), torch.ones(2).to_sparse()])
def test_weights_without_values_are_refused_for_values_and_for_stacks(weights: torch.Tensor) -> None:  # W
    stack = TensorDict.lazy_stack([TensorDict(a=torch.zeros(())) for _ in range(2)])
    for destination in ({"a": 1}, stack):
        with pytest.raises(WeightMismatch, match=r"'a' is (on the meta device|torch\.sparse_coo) in the weights"):
            plan_update(destination, {"a": weights})


def test_stretches_of_memory_that_meet_are_found_in_groups() -> None:
    base, other = torch.zeros(10), torch.zeros(4)
    tensors = [base[4:6], other, base[:4:2], base[1:3], torch.zeros(0), base[6:], base[5:7]]
    assert sorted(map(sorted, meeting_in_memory(tensors))) == [[0, 5, 6], [2, 3]]
    assert list(meeting_in_memory([])) == list(meeting_in_memory([base])) == []


def test_a_source_that_lies_where_another_target_does_is_read_before_that_is_written() -> None:  # A
    for size in (3, 1 << 19):
        destination = {"a": torch.zeros(size), "b": torch.ones(size), "c": torch.full((size,), 2.0)}
        write(destination, {"a": destination["b"], "b": destination["c"], "c": destination["a"]})
        assert [float(tensor[-1]) for tensor in destination.values()] == [1, 2, 0]
    turned = torch.arange(4.0).view(2, 2)
    write({"a": turned}, {"a": turned.t()})
    assert turned.tolist() == [[0, 2], [1, 3]]


@pytest.mark.parametrize("value", ["x", None, object()])
def test_a_value_for_a_tensor_is_refused(value: Any) -> None:  # V1
    words = f"'w' is a tensor in the destination and {type(value).__name__} in the weights"
    refused({"w": torch.zeros(2), "v": torch.zeros(2)}, {"w": value, "v": torch.ones(2)}, words)


def test_a_tensor_for_a_value_replaces_it_by_a_copy() -> None:  # V2
    for place in (plan_update, adopt):
        destination: dict[str, Any] = {"step": 1, "w": torch.zeros(1)}
        step = torch.tensor(5)
        update = place(destination, {"step": step, "w": torch.ones(1)})
        if not isinstance(update, str):
            update.write()
        assert destination["step"].item() == 5
        step.fill_(6)
        assert destination["step"].item() == 5


class Choosy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.state = nn.Parameter(torch.zeros(1)), "old"

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        if state == "bad":
            raise RuntimeError("not that one")
        self.state = state


def test_a_value_for_a_value_replaces_it_and_is_taken_back_if_anything_fails() -> None:  # V3
    choosy = Choosy()
    destination = {"note": "old", "z": choosy}
    for place in (lambda *it: plan_update(*it).write(), adopt):
        weights = {"note": "new", "z.weight": torch.ones(1), "z._extra_state": "bad"}
        with pytest.raises(RuntimeError, match="not that one"):
            place(destination, weights)
        assert (destination["note"], choosy.state, choosy.weight.item()) == ("old", "old", 0)
    write(destination, weights | {"z._extra_state": "new"})
    assert (destination["note"], choosy.state, choosy.weight.item()) == ("new", "new", 1)


def test_a_value_without_a_place_is_refused_but_for_a_state_of_none() -> None:  # V4
    destination = {"m": nn.Linear(1, 1)}
    refused(destination, {"m.note": "x"}, r"'m\.note' is not in the destination")
    refused(destination, {"note": None}, "'note' is not in the destination")
    refused(destination, {"m": None}, "'m' is not in the destination")
    refused(destination, {"m._extra_state": {}}, r"'m\._extra_state' is not in the destination")
    write(destination, {"m.weight": torch.full((1, 1), 3.0), "m._extra_state": None})
    assert destination["m"].weight.item() == 3


# -- whether it still holds -----------------------------------------------------------------------------------------


def grown(stack: Any) -> None:
    stack["s"].append(TensorDict(a=torch.zeros(1)))


def other_member(stack: Any) -> None:
    stack["s"].tensordicts[0] = TensorDict(a=torch.zeros(1))


def other_layer(stack: Any) -> None:
    stack["m"].a = nn.Linear(1, 1)


def other_mapping(stack: Any) -> None:
    stack["d"] = {"x": torch.zeros(1)}


def other_tensor(stack: Any) -> None:
    stack["d"]["x"] = torch.zeros(1)


def other_parameters(stack: Any) -> None:
    stack["p"]._param_td = TensorDict({"y": {"z": torch.zeros(1)}})


@pytest.mark.parametrize("change", [grown, other_member, other_layer, other_mapping, other_tensor, other_parameters])
def test_a_fit_knows_when_the_destination_has_other_tensors_at_any_level(change: Any) -> None:
    from tensordict import TensorDictParams

    destination = {
        "s": TensorDict.lazy_stack([TensorDict(a=torch.zeros(1)) for _ in range(2)]),
        "m": nn.Sequential(nn.Linear(1, 1)),
        "d": {"x": torch.zeros(1)},
        "p": TensorDictParams(TensorDict({"y": {"z": torch.zeros(1)}})),
    }
    destination["m"].a = nn.Linear(1, 1)  # type: ignore[assignment]
    fit = Fit(destination, ParamTree.of(ParamTree.of(destination).to_nested()))
    assert fit.is_held()
    assert fit.is_current()
    change(destination)
    assert not fit.is_held()
    assert not fit.is_current()


@pytest.mark.parametrize("change", [lambda it: it.half(), lambda it: setattr(it.weight, "data", torch.zeros(3, 3))])
def test_a_fit_knows_when_tensors_have_another_form(change: Any) -> None:
    model = nn.Linear(2, 2)
    fit = Fit(model, ParamTree.of(model))
    assert fit.is_current()
    change(model)
    assert fit.is_held()
    assert not fit.is_current()
