"""Destination tensors that cannot take a version: named before any is written."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict
from torch import nn

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights import Manifest, ParamTree
from rlinf_async.weights.model.writing import stand_in
from rlinf_async.weights.plane import destination as destination_module
from rlinf_async.weights.plane.destination import Destination
from tests._support.fake_gpus import FakeGpus
from tests.weights.ends import Tied, both, shown
from tests.weights.pairs import pair

every_apply = pytest.mark.parametrize("apply", ["copy", "map"])


def head(model: Tied) -> set[float]:
    """What is written first."""
    return {float(bound) for bound in torch.aminmax(model.head.weight.detach())}


def expanded(model: Tied) -> None:
    model.layers[1].weight = nn.Parameter(torch.zeros(1).expand(3, 3))


def without_memory(model: Tied) -> None:
    model.layers[1].to("meta")


def lazy(model: Tied) -> None:
    model.layers[1] = nn.LazyLinear(3)


def sparse(model: Tied) -> None:
    model.layers[1].weight = nn.Parameter(torch.zeros(3, 3).to_sparse())


BAD: list[tuple[Callable[[Tied], None], str]] = [
    (expanded, r"'layers\.1\.weight' is an expanded tensor in the destination.*clone\(\) it"),
    (without_memory, r"'layers\.1\.bias' is on the meta device in the destination.*to_empty\(\)"),
    (lazy, r"'layers\.1\.bias' is not initialised in the destination: run the model once"),
    (sparse, r"'layers\.1\.weight' is torch\.sparse_coo in the destination"),
]


@pytest.mark.parametrize(("spoil", "words"), BAD, ids=[spoil.__name__ for spoil, _ in BAD])
@every_apply
async def test_what_cannot_be_written_is_named_and_nothing_else_is_written(
    apply: str, spoil: Callable[[Tied], None], words: str
) -> None:
    if (apply, spoil) == ("map", expanded):
        pytest.skip("its memory is replaced, not written")
    model = Tied()
    spoil(model)
    async with both("multiprocess", model=model, apply=apply) as ends:
        with pytest.raises(WeightMismatch, match=words):
            await ends.deliver()
        assert head(model) == {0.0}
        async with ends.receiver.reading() as version:
            assert version == 0


@every_apply
async def test_what_was_made_for_inference_is_copied_to_and_map_says_so_once(
    apply: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, source = Tied(), Tied(1.0)
    source.layers[1] = nn.Linear(600, 600)  # large enough to be moved as memory, if that was possible
    with torch.inference_mode():
        model.layers[1] = nn.Linear(600, 600)
    async with both("multiprocess", model=model, source=source, apply=apply) as ends:
        for value in (2.0, 3.0):
            source.fill(value)
            await ends.deliver()
            assert ends.sees == {value}
    told = "weights are copied to the CPU and not mapped: 'layers.1.bias' was made under torch.inference_mode()"
    assert caplog.messages == ([told] if apply == "map" else [])


@pytest.mark.parametrize(
    ("kind", "options"), [("multiprocess", {"transport_dtype": torch.float32}), ("distributed", {})]
)
async def test_a_model_of_another_dtype_is_copied_to_and_map_says_so_once(
    kind: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Where the sender is told what travels, or sends to each by itself; see ``test_layouts`` for the others."""
    model, source = Tied().bfloat16(), Tied(1.0)
    memory = model.head.weight.data_ptr()
    async with both(kind, model=model, source=source, apply="map", **options) as ends:
        for value in (1.0, 2.0, 3.0):
            source.fill(value)
            await ends.deliver()
            assert ends.sees == {value}
    assert (model.head.weight.dtype, model.head.weight.data_ptr()) == (torch.bfloat16, memory)
    (told,) = (message for message in caplog.messages if "not mapped" in message)
    assert "'head.weight' travels as torch.float32 and is torch.bfloat16 here: transport_dtype=" in told


@pytest.mark.parametrize("kind", ["multiprocess", "shared memory"])
async def test_from_two_versions_that_are_kept_on_the_next_are_copied_and_the_log_says_so_once(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    source, kept = Tied(), []
    async with both(kind, source=source, apply="map") as ends:
        standing = []
        for value in range(1, 7):
            source.fill(float(value))
            await ends.deliver()
            standing.append(ends.receiver._subscriber._applying.destination.standing > 0)
            kept.append({name: tensor.detach() for name, tensor in ends.model.state_dict().items()})
        assert standing == [True, True, False, False, False, False]
        assert [shown(each) for each in kept] == [{float(value)} for value in range(1, 7)]
        (told,) = caplog.messages
        assert told.startswith("weights of 'policy' are copied here and not mapped, from version 3 on")
        assert "tensor.detach().clone()" in told
        kept.clear()
        for value in (7.0, 8.0):
            source.fill(value)
            await ends.deliver()
            assert ends.sees == {value}
        assert ends.receiver._subscriber._applying.destination.standing > 0, "nothing is kept any more"
        assert len(caplog.messages) == 1


def reshaped(model: Tied) -> None:
    model.layers[1].weight.data = torch.zeros(3, 3, 3)  # to which a copy would be broadcast


def halved(model: Tied) -> None:
    model.layers[1].half()


@pytest.mark.parametrize("change", [reshaped, halved])
@every_apply
async def test_tensors_that_change_in_place_after_the_first_version_are_refused(
    apply: str, change: Callable[[Tied], None]
) -> None:
    model, source = Tied(), Tied(1.0)
    async with both("multiprocess", model=model, source=source, apply=apply, strict_dtype=True) as ends:
        await ends.deliver()
        change(model)
        source.fill(2.0)
        words = {
            reshaped: r"'layers\.1\.weight' has shape \[3, 3, 3\] in the destination and \[3, 3\] in the weights",
            halved: r"'layers\.1\.bias' is torch\.float16 in the destination.*strict_dtype=",
        }
        with pytest.raises(WeightMismatch, match=words[change]):
            await ends.deliver()
        async with ends.receiver.reading() as version:
            assert version == 1
        assert head(model) == {1.0}
        for tensor in model.layers[1].parameters():
            tensor.data = torch.zeros(tensor.shape[:1] if tensor.dim() == 1 else (3, 3))
        await ends.deliver()
        assert ends.sees == {2.0}


@every_apply
async def test_tensors_tied_at_the_receiver_only_take_equal_values_and_no_others(apply: str) -> None:
    model, source = Tied(), Tied(1.0)
    source.head.weight = nn.Parameter(source.head.weight.detach().clone())
    async with both("multiprocess", model=model, source=source, apply=apply) as ends:
        await ends.deliver()
        assert ends.sees == {1.0}
        with torch.no_grad():
            source.head.weight.fill_(2.0)
        with pytest.raises(WeightMismatch, match=r"'head\.weight' and 'layers\.0\.weight' are tied in the destination"):
            await ends.deliver()
        assert ends.sees == {1.0}
        source.fill(3.0)
        await ends.deliver()
        assert ends.sees == {3.0}


@pytest.mark.parametrize("elements", [1, 400_000])
@pytest.mark.parametrize(
    "kind", [StopIteration, asyncio.CancelledError, concurrent.futures.CancelledError, GeneratorExit]
)
async def test_whatever_a_function_of_weights_raises_fails_one_version_only(
    kind: type[BaseException], elements: int
) -> None:
    loaded: list[float] = []

    def load(weights: Any) -> None:
        loaded.append(float(weights["w",][0]))
        if loaded == [1.0]:
            raise kind("of the user's")

    weights = {"w": torch.zeros(elements)}
    async with pair(weights, load) as (publisher, (subscriber,)):
        for version in (1.0, 2.0):
            weights["w"].fill_(version)
            handle = await publisher.publish(weights)
            if version == 1.0:
                with pytest.raises((RuntimeError, kind), match="StopIteration" if kind is StopIteration else "user's"):
                    await asyncio.wait_for(handle, 10)
            else:
                await asyncio.wait_for(handle, 10)
        async with subscriber.reading(10) as version:
            assert (version, loaded) == (2, [1.0, 2.0])


class Stateful(Tied):
    """Refuses ``"bad"`` as its state."""

    def __init__(self, value: float, state: str) -> None:
        super().__init__(value)
        self.state = state

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        if state == "bad":
            raise ValueError("I do not take bad states")
        self.state = state


class Holder(Tied):
    """With two states, of which the first is set first."""

    def __init__(self, value: float, first: str, second: str) -> None:
        super().__init__(value)
        self.a, self.b = Stateful(value, first), Stateful(value, second)


@every_apply
async def test_a_state_that_a_module_refuses_leaves_its_last_version_whole(apply: str) -> None:
    model = Holder(0.0, "new", "new")
    async with both("multiprocess", model=model, source=Holder(1.0, "one", "one"), apply=apply) as ends:
        await ends.deliver()
        with pytest.raises(ValueError, match="I do not take bad states"):
            await ends.deliver(Holder(2.0, "two", "bad"))
        async with ends.receiver.reading() as version:
            assert version == 1, "nothing was written"
        assert ends.sees == {1.0}
        assert (model.a.state, model.b.state) == ("one", "one")
        await ends.deliver(Holder(3.0, "three", "three"))
        assert ends.sees == {3.0}


def mapped(model: dict[str, Any], weights: dict[str, Any]) -> Destination:
    """A destination that stands in these weights."""
    destination, tree = Destination(lambda: model, maps=True), ParamTree.of(weights)
    assert destination.has_moved()
    destination.check(Manifest.of(tree))
    destination.write(tree.tensors, {})
    assert not destination.is_copied
    return destination


def fill(destination: Destination, weights: dict[str, Any], value: float) -> dict[tuple[str, ...], torch.Tensor]:
    """Writes the next version, from other memory, while nobody changes what the last one stands in."""
    views = {path: torch.full_like(tensor, value) for path, tensor in ParamTree.of(weights).tensors.items()}
    destination.compare(views, {})
    destination.write(views, {})
    return views


@pytest.mark.parametrize("other", [torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2)], ids=["copied", "mapped"])
@pytest.mark.parametrize("is_stack", [False, True])
def test_a_replaced_tensor_leaves_nothing_in_memory_that_the_sender_writes_to_again(
    is_stack: bool, other: torch.Tensor
) -> None:
    """Two tensors stand in one leaf of a source where they are tied, or a stack and a whole one."""
    one, members = torch.ones(2, 3), [TensorDict({"v": torch.zeros(3)}) for _ in range(2)]
    model = {"a": torch.zeros(2, 3), "b": torch.zeros(2, 3), "c": torch.zeros(2)}
    model |= {"b": LazyStackedTensorDict(*members)} if is_stack else {}
    weights = {"a": one, "b": {"v": one} if is_stack else one, "c": torch.ones(2)}
    destination, replaced = mapped(model, weights), model["c"]
    model["c"] = other.clone()
    last = fill(destination, weights, 2.0)
    assert destination.is_copied == (other.dtype is torch.bfloat16)
    for leaf in (one, weights["c"], *(last.values() if destination.is_copied else ())):
        leaf.fill_(9.0)
    shown = [member["v"] for member in members] if is_stack else [model["b"]]
    assert {float(value) for tensor in (model["a"], model["c"], *shown) for value in tensor.flatten()} == {2.0}
    assert replaced.tolist() == [1, 1]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_mapping_that_fails_leaves_no_tensor_in_the_memory_of_its_sender(
    is_replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(targets: Any, sources: Any) -> None:
        stand_in(targets[:1], sources[:1])
        raise MemoryError

    model = {"a": torch.zeros(3), "b": torch.zeros(3), "c": torch.zeros(3)}
    weights = {name: torch.ones(3) for name in model}
    destination = mapped(model, weights)
    if is_replaced:
        model["c"] = torch.zeros(3)
    monkeypatch.setattr(destination_module, "stand_in", half)
    views = {(name,): torch.full((3,), 2.0) for name in model}
    destination.compare(views, {})
    with pytest.raises(MemoryError):
        destination.write(views, {})
    for leaf in (*weights.values(), *views.values()):
        leaf.fill_(9.0)
    assert [tensor.tolist()[0] for tensor in model.values()] == [2, 1, 0 if is_replaced else 1]


def test_mapped_tensors_of_a_sender_that_ties_them_are_not_tied_for_one_that_does_not() -> None:
    tied, model = torch.ones(2), {"a": torch.zeros(2), "b": torch.zeros(2)}
    destination = mapped(model, {"a": tied, "b": tied})
    untied = ParamTree.of({"a": torch.full((2,), 2.0), "b": torch.full((2,), 3.0)})
    destination.check(Manifest.of(untied))
    destination.compare(untied.tensors, {})
    destination.write(untied.tensors, {})
    assert {name: tensor.tolist() for name, tensor in model.items()} == {"a": [2, 2], "b": [3, 3]}


def test_a_model_that_was_moved_off_the_gpu_stays_where_it_is(caplog: pytest.LogCaptureFixture) -> None:
    gpus = FakeGpus()
    model, weights = gpus.put({"w": torch.zeros(3)}), gpus.put({"w": torch.ones(3)})
    tree = ParamTree.of(weights)
    destination = Destination(lambda: model, maps=True, gpus=gpus)
    assert destination.has_moved()
    destination.check(Manifest.of(tree))
    destination.write(tree.tensors, {})
    assert (gpus.done("copy"), model["w"].data_ptr()) == ([], weights["w"].data_ptr())
    model["w"].data = torch.zeros(3)  # as .to("cpu")
    destination.check(Manifest.of(tree))
    weights["w"].fill_(2)
    destination.write(tree.tensors, {})
    assert (gpus.done("copy"), model["w"].tolist()) == ([["D2H", {}]], [2, 2, 2])
    assert (gpus.places(model.values()), destination.is_copied) == (set(), True)
    assert not caplog.messages, "the sender may have packed it before it knew of this place"
    destination.write(tree.tensors, {})
    assert caplog.messages == ["weights are copied to the CPU and not mapped: the sender has them elsewhere"]
    here = ParamTree.of({"w": torch.full((3,), 3.0)})
    destination.write(here.tensors, {})
    assert (model["w"].data_ptr(), destination.is_copied) == (here.tensors["w",].data_ptr(), False)
