"""Conformance claims: names that differ between the two sides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rlinf_async.errors import WeightMismatch
from tests.weights.contract.claims import Make, Way, claim
from tests.weights.ends import Tied


def _links(way: Way) -> bool:
    return way.kind in ("multiprocess", "shared memory", "linked")


class Wrapped(nn.Module):
    """A model in a wrapper, as DistributedDataParallel and torch.compile have it."""

    def __init__(self, name: str = "module", value: float = 0.0) -> None:
        super().__init__()
        setattr(self, name, Tied(value))


def compiled() -> Wrapped:
    return Wrapped("_orig_mod")


def partly_compiled() -> Tied:
    model = Tied()
    model.layers[1] = Wrapped("_orig_mod")
    model.layers[1]._orig_mod = nn.Linear(3, 3)
    model.fill(0.0)
    return model


def body() -> dict[str, Any]:
    return {"body.w": torch.zeros(3), "body.b": torch.zeros(3), "head": torch.zeros(3)}


def to_body(name: str) -> str:
    return name.replace("trunk.", "body.")


@claim(only=_links)
async def a_prefix_on_one_side_is_taken_off_and_the_error_without_that_says_how(make: Make) -> None:
    for source, model, prefix, side in (
        (Wrapped("module", 1.0), Tied, "module.", "trainer"),
        (Tied(1.0), compiled, "_orig_mod.", "receiver"),
    ):
        async with make(source, model=model) as ends:
            with pytest.raises(WeightMismatch, match=rf"strip_prefix='{prefix}' on the {side}'s side takes it off"):
                await ends.deliver()
        async with make(source, model=model, strip_prefix=prefix) as ends:
            for version in (1, 2, 3):
                await ends.deliver()
                await ends.expect(version, 1.0)


@claim(only=_links)
async def a_wrapper_within_is_named_by_the_error(make: Make) -> None:
    async with make(Tied(1.0), model=partly_compiled) as ends:
        with pytest.raises(WeightMismatch, match=r"differ by '_orig_mod\.' .* name\.replace\('_orig_mod\.', ''\)"):
            await ends.deliver()


@claim(only=_links)
async def names_of_another_framework_are_mapped_by_a_dict_or_a_function(make: Make) -> None:
    for rename in (
        {"trunk": "body", "top": "head"},
        {"trunk.w": "body.w", "trunk.b": "body.b", "top": "head"},
        to_body,
    ):
        source = {
            "trunk": {"w": torch.ones(3), "b": torch.ones(3)},
            "head" if rename is to_body else "top": torch.ones(3),
        }
        async with make(source, model=body, rename=rename) as ends:
            for version in (1, 2):
                await ends.deliver()
                await ends.expect(version, 1.0)


@claim(only=_links)
async def two_tensors_are_not_given_one_name(make: Make) -> None:
    async with make({"a": torch.ones(3), "b": torch.ones(3)}, model=body, rename={"a": "b"}) as ends:
        with pytest.raises(WeightMismatch, match="'b' and another tensor would both travel as 'b'"):
            await ends.sender.send()
