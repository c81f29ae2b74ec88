"""Tied tensors: copies of one count as one, or an error names them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlinf_async.errors import WeightMismatch
from tests.weights.ends import Tied, both

every_publisher = pytest.mark.parametrize("kind", ["multiprocess", "shared memory"])


@every_publisher
async def test_copies_of_a_tied_tensor_count_as_one_as_long_as_they_are_equal(kind: str) -> None:
    async with both(kind) as ends:
        await ends.deliver()
        copies = {name: tensor.clone() for name, tensor in Tied(6.0).state_dict().items()}
        await ends.deliver(copies)
        assert ends.sees == {6.0}
        one_name = {name: tensor for name, tensor in Tied(7.0).state_dict().items() if name != "head.weight"}
        await ends.deliver(one_name)
        assert ends.sees == {7.0}
        copies["layers.0.weight"].fill_(9.0)
        with pytest.raises(WeightMismatch, match=r"'layers\.0\.weight' was tied to 'head\.weight'.*own now: tie them"):
            await ends.sender.send(copies)
        assert ends.sees == {7.0}


@every_publisher
async def test_a_tie_that_is_broken_after_the_first_version_is_refused(kind: str) -> None:
    source = Tied(1.0)
    async with both(kind, source=source) as ends:
        await ends.deliver()
        source.layers[0].weight = nn.Parameter(torch.full((3, 3), 5.0))
        with pytest.raises(WeightMismatch, match=r"'(layers\.0|head)\.weight' (is|was) tied to"):
            await ends.sender.send()
        assert ends.sees == {1.0}
        source.head.weight = source.layers[0].weight
        await ends.deliver()
        assert ends.sees == {1.0, 5.0}


@every_publisher
async def test_some_of_the_weights_are_refused_after_all_and_nobody_hears_of_them(kind: str) -> None:
    async with both(kind) as ends:
        await ends.deliver()
        for weights, words in (
            ({"steps": torch.zeros(1)}, "is missing on the other side|on the other side only"),
            ({**Tied(2.0).state_dict(), "more": torch.zeros(1)}, "'more' is on the other side only"),
            ({**Tied(2.0).state_dict(), "steps": torch.zeros(2)}, r"'steps' has become .* of shape \(2,\)"),
        ):
            with pytest.raises(WeightMismatch, match=words):
                await ends.sender.send(weights)
        assert (ends.sees, ends.sender.version) == ({1.0}, 1)
        await ends.deliver(Tied(3.0))
        assert ends.sees == {3.0}
