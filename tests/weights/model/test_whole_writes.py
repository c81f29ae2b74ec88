"""Writes that fail before the first tensor, and the age of extra state."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from torch import nn

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights.model.writing import plan_update

BYTES = [
    torch.uint8,
    torch.int8,
    torch.bool,
    torch.uint4,
    torch.int4,
    torch.float8_e4m3fn,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
]
OTHERS = [torch.int16, torch.int64, torch.uint16, torch.uint64, torch.bfloat16, torch.float32, torch.complex64]


def some(dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(3, dtype=torch.uint8).view(dtype) if dtype in BYTES else torch.zeros(3, dtype=dtype)


@pytest.mark.parametrize("there", [*BYTES, *OTHERS], ids=str)
def test_whatever_the_dtypes_all_is_written_or_nothing(there: torch.dtype) -> None:
    refused = set()
    for here in (*BYTES, *OTHERS):
        destination = {"a": torch.zeros(2), "b": some(there)}
        try:
            plan_update(destination, {"a": torch.ones(2), "b": some(here)}).write()
        except WeightMismatch:
            refused.add(here)
        assert destination["a"].tolist() == ([0, 0] if here in refused else [1, 1]), here
    assert refused != {*BYTES, *OTHERS} or there in (torch.uint4, torch.int4)


def test_a_dtype_that_torch_only_stores_is_named() -> None:
    words = r"'b' is torch\.uint4 on cpu in the destination, to which torch copies no .*uint8"
    with pytest.raises(WeightMismatch, match=words):
        plan_update({"b": some(torch.uint4)}, {"b": some(torch.uint8)})
    plan_update({"b": some(torch.uint4)[:0]}, {"b": some(torch.uint8)[:0]}).write()


class Noted(nn.Module):
    def __init__(self, note: str) -> None:
        super().__init__()
        self.note = note
        self.weight = nn.Parameter(torch.zeros(2))

    def get_extra_state(self) -> Any:
        return self.note

    def set_extra_state(self, state: Any) -> None:
        self.note = state


def conjugated() -> torch.Tensor:
    return torch.ones(2, dtype=torch.complex64).conj()


@pytest.mark.parametrize("form", ["conjugated", "negated"])
def test_a_lazy_view_is_refused_and_the_extra_state_stays(form: str) -> None:
    model, lazy = Noted("old"), conjugated() if form == "conjugated" else conjugated().imag
    assert lazy.is_conj() or lazy.is_neg()
    model.register_buffer("lazy", lazy)
    news = {"weight": torch.ones(2), "lazy": torch.zeros(2, dtype=lazy.dtype), "_extra_state": "new"}
    with pytest.raises(WeightMismatch, match=r"'lazy' is a lazily conjugated or negated view in the destination: use"):
        plan_update(model, news).write()
    assert (model.note, model.weight.tolist()) == ("old", [0, 0])
    model.register_buffer("lazy", lazy.resolve_conj().resolve_neg())
    plan_update(model, news).write()
    assert (model.note, model.weight.tolist()) == ("new", [1, 1])


def test_a_lazy_view_is_a_source_like_others() -> None:
    target = torch.zeros(2, dtype=torch.complex64)
    plan_update({"a": target}, {"a": conjugated() * 1j}).write()
    assert target.tolist() == [1j, 1j]


def test_the_extra_state_is_taken_back_if_the_tensors_cannot_be_written() -> None:
    model = Noted("old")
    update = plan_update(model, {"weight": torch.ones(2), "_extra_state": "new"})
    update.sources[0] = torch.ones(3)  # what has become of it since
    with pytest.raises(RuntimeError):
        update.write()
    assert (model.note, model.weight.tolist()) == ("old", [0, 0])


def test_the_extra_state_is_taken_back_where_a_cancellation_ends_the_write() -> None:
    def cancelled(*_: object) -> None:
        raise asyncio.CancelledError

    model = Noted("old")
    with pytest.raises(asyncio.CancelledError):
        plan_update(model, {"weight": torch.ones(2), "_extra_state": "new"}).write(cancelled)
    assert model.note == "old"


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_values_are_not_written_over_plain_ones() -> None:
    quantized = torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.qint8)
    destination = {"a": torch.zeros(2), "b": torch.zeros(3)}
    with pytest.raises(WeightMismatch, match="'b' is"):
        plan_update(destination, {"a": torch.ones(2), "b": quantized}).write()
    assert destination["a"].tolist() == [0, 0]
