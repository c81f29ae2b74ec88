"""Sync reports: bytes sent, and unknown outcomes marked as such."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlinf_async import DistributedTransport, WeightSyncScheme
from tests._support.weight_parts import SingleDelivery, WeightsMessage
from tests.weights.ends import CALLED, SCHEMES, Tied, both

ALIGNED = 256
"""Bytes of which every tensor takes a multiple where it is packed."""

TENSORS = 5
"""Of the model, all smaller than that."""

every_scheme = pytest.mark.parametrize("kind", SCHEMES)


@every_scheme
async def test_bytes_are_those_of_the_weights_that_were_sent(kind: str) -> None:
    tree = {name: tensor for name, tensor in Tied().state_dict().items() if name != "head.weight"}
    async with both(kind) as ends:
        whole = sum(tensor.nbytes for tensor in tree.values()) if kind in CALLED else TENSORS * ALIGNED
        assert (await ends.deliver()).bytes == whole
        assert (await ends.deliver()).bytes == whole


async def test_bytes_are_counted_in_the_dtype_that_travels() -> None:
    source = {"w": torch.zeros(1024)}
    for kind in ("multiprocess", "distributed"):
        async with both(kind, model=_like(source), source=source, transport_dtype="bfloat16") as ends:
            assert (await ends.deliver()).bytes == 2048


def _like(source: dict[str, torch.Tensor]) -> Any:
    return {name: torch.ones_like(tensor) for name, tensor in source.items()}


@every_scheme
async def test_seconds_that_nobody_has_measured_are_none(kind: str) -> None:
    async with both(kind) as ends:
        ack = (await ends.deliver()).per_worker[0]
        seconds = [ack.t_recv, ack.t_apply, ack.t_pause]
        if kind in ("multiprocess", "shared memory"):
            assert all(each is not None and each >= 0 for each in seconds)
        else:
            assert seconds == [None] * 3


async def test_what_goes_nowhere_has_no_bytes() -> None:
    async with both("worker") as ends:
        ends.sender._transports[0].callee = None
        assert (await ends.sender.send()).bytes == 0
    assert DistributedTransport().nbytes == 0


async def test_of_a_transport_that_does_not_count_the_tensors_are_and_what_is_none_is_nothing() -> None:
    transport = SimpleNamespace(send_weights=lambda model_id, weights: None)
    for weights, nbytes in (({"w": torch.zeros(3), "x": 1}, 12 + 8), ("something else", 0)):
        delivery = SingleDelivery(0, transport)
        await delivery.stage(WeightsMessage("policy", 1, weights, None))
        assert delivery.nbytes == nbytes


async def test_a_report_of_no_synchronisation_has_nothing() -> None:
    scheme = WeightSyncScheme.from_backend("none")
    scheme.init_on_sender("policy")
    report = await scheme.get_sender().send({"w": torch.zeros(2)})
    assert (report.bytes, dict(report.per_worker)) == (0, {})
    await scheme.close()
