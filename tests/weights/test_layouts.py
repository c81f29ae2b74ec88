"""Layouts of weights that are mapped: packed in the receivers' dtype, where all of them have the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlinf_async.weights import Publisher
from tests.weights.ends import Tied
from tests.weights.pairs import pair


def halved() -> Tied:
    return Tied().bfloat16()


def stands_in_slot(model: torch.nn.Module) -> bool:
    """Whether its parameters are neighbours, as the slot has them."""
    addresses = sorted(parameter.data_ptr() for parameter in model.parameters())
    return all(address % 256 == 0 for address in addresses) and addresses[-1] - addresses[0] < 1 << 16


async def sent(publisher: Publisher, source: Tied, value: float) -> Any:
    source.fill(value)
    return await (await publisher.publish(source))


async def test_who_has_another_dtype_than_others_copies_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    source, models = Tied(1.0), [halved(), Tied()]
    async with pair(source, *models, apply="map") as (publisher, _):
        for value in (1.0, 2.0, 3.0, 4.0, 5.0):
            await sent(publisher, source, value)
            assert [model.values() for model in models] == [{value}] * 2
        assert list(map(stands_in_slot, models)) == [False, True]
    assert len(caplog.records) == 1
    for text in ("copied", "torch.bfloat16", "transport_dtype=", "strict_dtype=True"):
        assert text in caplog.text
