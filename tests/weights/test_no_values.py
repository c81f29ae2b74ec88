"""Weights without values: an error that names them."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import nn

from rlinf_async.errors import RemoteError, WeightMismatch
from rlinf_async.weights import ParamTree
from tests.weights.ends import SCHEMES, Tied, both

PUBLISHING = ("multiprocess", "shared memory")


@pytest.mark.parametrize("kind", SCHEMES)
async def test_a_model_on_the_meta_device(kind: str) -> None:
    source = Tied(1.0)
    source.layers[1].to("meta")
    async with both(kind, source=source) as ends:
        with pytest.raises((WeightMismatch, RemoteError), match=r"'layers\.1\.bias' .*meta device"):
            await ends.sender.send()


@pytest.mark.parametrize("kind", PUBLISHING)
async def test_a_model_that_goes_there_after_the_first_version(kind: str) -> None:
    source = Tied(1.0)
    async with both(kind, source=source) as ends:
        await ends.deliver()
        source.layers[1].to("meta")
        with pytest.raises(WeightMismatch, match=r"'layers\.1\.bias' .*meta device"):
            await ends.sender.send()
        assert ends.sees == {1.0}


@pytest.mark.parametrize("strategy", ["state_dict", "tensordict"])
async def test_a_lazy_layer_that_has_seen_no_data(strategy: str) -> None:
    source = Tied(1.0)
    source.layers[1] = nn.LazyLinear(3)
    async with both("multiprocess", source=source, strategy=strategy) as ends:
        with pytest.raises(ValueError, match=r"'layers\.1\.(bias|weight)' is not initialised.*run the model once"):
            await ends.sender.send()


@pytest.mark.parametrize(
    "array",
    [numpy.ones(2, ">f4"), numpy.ones(4)[::-2], numpy.ones(2, numpy.longdouble)],
    ids=["byte order", "backwards", "80 bits"],
)
def test_an_array_that_torch_cannot_take(array: Any) -> None:
    with pytest.raises(ValueError, match=r"'a\.b' is an array of .*ascontiguousarray"):
        ParamTree.of({"a": {"b": array}})
    assert ParamTree.of({"a": numpy.ascontiguousarray(array, numpy.float32)})[("a",)].dtype is torch.float32
