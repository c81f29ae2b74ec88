"""First versions of any kind: workers get the whole model."""

from __future__ import annotations

import asyncio
import multiprocessing
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from rlinf_async import MultiProcessWeightSyncScheme, SharedMemTransport, SharedMemWeightSyncScheme
from rlinf_async.errors import WeightMismatch
from tests._support.dying_model import Fragile
from tests._support.weight_parts import completed
from tests.weights.ends import Both, Tied, both

PUBLISHING = ("multiprocess", "shared memory")

every_publisher = pytest.mark.parametrize("kind", PUBLISHING)
every_way = pytest.mark.parametrize(
    ("kind", "apply", "strategy"),
    [(kind, apply, form) for kind in PUBLISHING for apply in ("copy", "map") for form in ("state_dict", "tensordict")],
)


def shown(model: Tied) -> dict[str, set[float]]:
    """The values that each tensor has."""
    return {name: set(tensor.flatten().tolist()) for name, tensor in model.state_dict().items()}


def of(value: float, *names: str) -> dict[str, torch.Tensor]:
    return {name: torch.full_like(tensor, value) for name, tensor in Tied().state_dict().items() if name in names}


ONES_AND_FIVES = {
    "layers.0.weight": {5.0},
    "head.weight": {5.0},
    "layers.0.bias": {1.0},
    "layers.1.weight": {1.0},
    "layers.1.bias": {1.0},
    "steps": {1.0},
}
"""What there is if the head of a model full of ones, which is tied, has become fives."""


@every_way
async def test_some_of_the_weights_come_with_the_rest_of_the_model_and_all_can_be_sent_afterwards(
    kind: str, apply: str, strategy: str
) -> None:
    async with both(kind, apply=apply, strategy=strategy) as ends:
        report = await ends.deliver(of(5.0, "head.weight"))
        assert report.version == ends.receiver.version == 1
        assert shown(ends.model) == ONES_AND_FIVES
        await ends.deliver()
        assert ends.sees == {1.0}
        await ends.deliver(of(5.0, "head.weight"))
        assert shown(ends.model) == ONES_AND_FIVES
        await ends.deliver(Tied(3.0))
        assert ends.sees == {3.0}


@every_way
async def test_some_keys_come_with_the_rest_of_the_model(kind: str, apply: str, strategy: str) -> None:
    async with both(kind, apply=apply, strategy=strategy) as ends:
        await ends.deliver(Tied(5.0), keys=["head"])
        assert shown(ends.model) == ONES_AND_FIVES
        await ends.deliver(keys="head.weight")
        assert ends.sees == {1.0}


@every_publisher
async def test_who_connects_with_some_of_the_weights_has_all(kind: str) -> None:
    async with both(kind) as ends:
        sending, receiving = ends.schemes
        await asyncio.gather(sending.connect(weights=of(5.0, "head.weight"), timeout=20), receiving.connect(timeout=20))
        assert shown(ends.model) == ONES_AND_FIVES


@every_publisher
async def test_the_keys_of_the_model_itself_are_all_of_it(kind: str) -> None:
    async with both(kind) as ends:
        await ends.deliver(keys=["steps"])
        assert ends.sees == {1.0}


async def test_what_a_model_has_beside_its_tensors_comes_too() -> None:
    source, model = Fragile(1.0), Fragile()
    source.order = {"victim": 5, "signal": 9}
    async with both("multiprocess", source=source, model=model) as ends:
        await ends.deliver({"steps": torch.full((1,), 5.0)})
        assert (model.order, model.steps.item()) == (source.order, 5.0)


@every_publisher
async def test_after_a_first_send_that_was_given_up_the_next_one_is_the_first(kind: str) -> None:
    async with both(kind) as ends:
        with pytest.raises(WeightMismatch, match=r"'head.weight' is .* of shape \(7,\)"):
            await ends.sender.send({"head.weight": torch.zeros(7)})
        assert not await ends.take(0.05)
        await ends.deliver(of(5.0, "head.weight"))
        assert shown(ends.model) == ONES_AND_FIVES


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a shape": ({"steps": torch.zeros(2)}, r"'steps' is torch.float32 of shape \(2,\); the model of 'policy', .* has"),
    "a dtype": ({"steps": torch.zeros(1).double()}, "'steps' is torch.float64 of shape"),
    "a name": (
        {"steps": torch.zeros(1), "step": torch.zeros(1)},
        "'step' is among the first weights of 'policy', and not in its model",
    ),
    "a tie": (
        {"head.weight": torch.zeros(3, 3), "layers.0.weight": torch.ones(3, 3)},
        "'layers.0.weight' is tied to 'head.weight', and their values differ",
    ),
}


@pytest.mark.parametrize("what", BAD)
@every_publisher
async def test_what_does_not_fit_the_model_is_named_and_nobody_hears_of_it(kind: str, what: str) -> None:
    weights, words = BAD[what]
    async with both(kind) as ends:
        with pytest.raises(WeightMismatch, match=words):
            await ends.sender.send(weights)
        with pytest.raises(KeyError, match="keys= names 'nowhere'"):
            await ends.sender.send(keys=["nowhere"])
        assert not await ends.take(0.05)
        assert (ends.sees, ends.sender.version) == ({0.0}, 0)
        await ends.deliver()
        assert ends.sees == {1.0}


@every_publisher
async def test_without_a_model_the_first_weights_say_what_there_is_and_errors_say_what_to_do(kind: str) -> None:
    async with both(kind) as ends:
        ends.sender._source_model = None
        with pytest.raises(ValueError, match=r"version of 'policy' is whole, and keys= names only some.*source_model="):
            await ends.sender.send(Tied(2.0), keys=["head"])
        assert ends.sender.version == 0
        await ends.deliver(of(5.0, "head.weight"))
        assert ends.receiver.version == 1
        with pytest.raises(WeightMismatch, match=r"layers\.0\.bias") as caught:
            await ends.sender.send(Tied(3.0))
        assert "source_model=" in " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


async def test_keys_that_name_everything_need_no_model() -> None:
    async with both("multiprocess") as ends:
        ends.sender._source_model = None
        await ends.deliver(Tied(2.0), keys=["layers", "steps", "head"])
        assert ends.sees == {2.0}


async def test_one_tensor_under_two_names_is_no_tie_from_then_on() -> None:
    shared = torch.full((3,), 5.0)
    async with both("multiprocess") as ends:
        await ends.deliver({"layers.0.bias": shared, "layers.1.bias": shared})
        assert shown(ends.model)["layers.0.bias"] == shown(ends.model)["layers.1.bias"] == {5.0}
        await ends.deliver()
        assert ends.sees == {1.0}


async def test_what_is_selected_is_all_that_comes() -> None:
    for select in ("trainable", lambda name, tensor: name != "layers.1.weight"):
        source = Tied(1.0)
        source.layers[1].weight.requires_grad_(False)
        async with both("multiprocess", source=source, select=select) as ends:
            await ends.deliver(of(5.0, "head.weight", "layers.1.weight"))
            assert shown(ends.model) == ONES_AND_FIVES | {"layers.1.weight": {0.0}}
            await ends.deliver()
            assert shown(ends.model)["layers.1.weight"] == {0.0}


class Other(nn.Module):
    """A model by another name, as a wrapper makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Tied(9.0)


def linked(context: Any) -> Any:
    ours, theirs = multiprocessing.Pipe()
    sending, receiving, model = MultiProcessWeightSyncScheme(), MultiProcessWeightSyncScheme(), Tied()
    context.pipes = [ours]
    sending.init_on_sender("policy", context)
    receiving.init_on_worker("policy", pipe=theirs, model=model)
    return Both(sending, receiving, model), (ours, theirs)


@pytest.mark.parametrize(
    ("policy", "first", "seen"),
    [
        (Tied(1.0), of(5.0, "head.weight"), ONES_AND_FIVES),
        (object(), Tied(2.0).state_dict(), {name: {2.0} for name in ONES_AND_FIVES}),
        (Other(), Tied(2.0).state_dict(), {name: {2.0} for name in ONES_AND_FIVES}),
    ],
    ids=["a model", "something else", "a model with other names"],
)
async def test_the_model_of_a_context_counts_if_the_weights_are_its_own(policy: Any, first: Any, seen: Any) -> None:
    context = SimpleNamespace(policy=policy)
    ends, pipes = linked(context)
    with pipes[0], pipes[1]:
        await ends.deliver(first)
        assert shown(ends.model) == seen
        for scheme in ends.schemes:
            await scheme.close()


async def test_a_buffer_in_shared_memory_is_whole_and_one_that_was_registered_stands_for_the_model() -> None:
    async with both("shared memory", strategy="state_dict") as ends:
        transport = ends.schemes[0].transport
        await ends.deliver(of(5.0, "head.weight"))
        assert set(transport.buffer("policy")["layers"]["1"]["bias"].tolist()) == {1.0}
        assert set(transport.buffer("policy")["head"]["weight"].flatten().tolist()) == {5.0}
    for options in ({"keys": ["head"]}, {}):
        async with both("shared memory", strategy="state_dict") as ends:
            ends.sender._source_model = None
            ends.schemes[0].transport._buffers["policy"] = Tied(1.0).state_dict()
            await ends.deliver(Tied(5.0).state_dict() if options else of(5.0, "head.weight"), **options)
            assert shown(ends.model) == ONES_AND_FIVES


def test_a_buffer_without_workers_is_whole_too() -> None:
    scheme = SharedMemWeightSyncScheme(strategy="state_dict")
    scheme.init_on_sender("policy", pipes=[], source_model=Tied(1.0))
    scheme.get_sender().send(of(5.0, "head.weight"))
    scheme.get_sender().send()
    assert set(scheme.transport.buffer("policy")["head"]["weight"].flatten().tolist()) == {1.0}
    scheme.close()


def test_a_buffer_that_was_made_since_is_only_written_what_was_sent() -> None:
    transport, model = SharedMemTransport(), Tied(1.0).state_dict()
    part = of(5.0, "head.weight")
    writes = [transport.plan("policy", part, model | part), transport.plan("policy", part, model | part)]

    async def write() -> None:
        await writes[0]()
        transport.buffer("policy")["steps"].fill_(7.0)
        await writes[1]()

    asyncio.run(write())
    assert transport.buffer("policy")["steps"].item() == 7.0
    transport.close()


def test_a_first_version_that_lacks_nothing_is_left_as_it_is() -> None:
    more = {**Tied(2.0).state_dict(), "more": torch.zeros(1)}
    for weights in (Tied(2.0).state_dict(), more, {"another": torch.zeros(1)}):
        assert completed(weights, None, Tied(1.0), "policy") is weights
        assert completed(weights, None, None, "policy") is weights
    named = completed(Tied(2.0).state_dict(), ["steps", "layers"], Tied(1.0), "policy")
    assert "head.weight" not in named, "the head is tied to a layer: nothing lacks"
