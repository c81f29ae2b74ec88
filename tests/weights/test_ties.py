"""Tied tensors: sent under one name, or an error that names them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlinf_async.errors import WeightMismatch
from tests.weights.ends import SCHEMES, Tied, both

PUBLISHING = ("multiprocess", "shared memory")

every_scheme = pytest.mark.parametrize("kind", SCHEMES)
every_publisher = pytest.mark.parametrize("kind", PUBLISHING)


def values(module: nn.Module) -> set[float]:
    return {float(bound) for tensor in module.state_dict().values() for bound in torch.aminmax(tensor)}


@pytest.mark.parametrize("key", ["head", "head.weight", "layers.0", "layers.0.weight", "layers"])
@every_scheme
async def test_keys_names_a_tied_tensor_by_each_of_its_names_and_by_what_is_above_them(kind: str, key: str) -> None:
    source = Tied(1.0)
    async with both(kind, source=source) as ends:
        await ends.deliver()
        source.fill(7.0)
        await ends.deliver(keys=[key])
        assert values(ends.model.head) == {7.0}
        assert ends.model.steps.item() == 1.0, "was not named"


@every_publisher
async def test_a_module_whose_only_tensor_is_a_second_name_can_be_named(kind: str) -> None:
    source, model = Tied(1.0), Tied()
    source.layers[0].bias = model.layers[0].bias = None
    async with both(kind, source=source, model=model) as ends:
        await ends.deliver()
        source.fill(7.0)
        await ends.deliver(keys=["layers.0"])
        assert values(model.layers[0]) == {7.0}
        assert values(model.layers[1]) == {1.0}


@pytest.mark.parametrize("key", ["head", "layers.0"])
@every_publisher
async def test_a_tie_that_is_broken_after_the_first_version_is_refused_with_keys_too(kind: str, key: str) -> None:
    source = Tied(1.0)
    async with both(kind, source=source) as ends:
        await ends.deliver()
        source.layers[0].weight = nn.Parameter(torch.full((3, 3), 5.0))
        with pytest.raises(WeightMismatch, match=r"'layers\.0\.weight' was tied to 'head\.weight'.*own now: tie them"):
            await ends.sender.send(keys=[key])
        assert ends.sees == {1.0}
        source.head.weight = source.layers[0].weight
        await ends.deliver(keys=[key])
        assert values(ends.model.head) == {5.0}


@every_publisher
async def test_copies_of_a_tied_tensor_count_as_one_as_long_as_they_are_equal(kind: str) -> None:
    async with both(kind) as ends:
        await ends.deliver()
        copies = {name: tensor.clone() for name, tensor in Tied(6.0).state_dict().items()}
        await ends.deliver(copies, keys=["layers.0"])
        assert values(ends.model.layers[0]) == {6.0}
