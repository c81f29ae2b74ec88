"""Conformance claims: refusals of what does not fit, before the first byte is written."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from rlinf_async.errors import RemoteError, WeightMismatch
from tests.weights.contract.claims import Make, claim, says_closed
from tests.weights.ends import Tied


def changed(**tensors: Any) -> dict[str, Any]:
    weights = {name: torch.full_like(tensor, 9.0) for name, tensor in Tied().state_dict().items()}
    return weights | {name.replace("__", "."): tensor for name, tensor in tensors.items()}


MISFITS = {
    "layers.7.weight": changed(layers__7__weight=torch.zeros(3)),
    "layers.1.weight": changed(layers__1__weight=torch.zeros(3, 4)),
    "steps": changed(steps=torch.zeros(1, dtype=torch.complex64)),
}
"""By what is wrong: an unknown key, another shape, another kind of dtype."""


@claim()
async def an_unknown_key_another_shape_and_another_dtype_are_named_and_the_last_version_stays(make: Make) -> None:
    async with make() as ends:
        await ends.receivers.serve()
        await ends.sender.send(Tied(3.0))
        good = ends.sender.version
        for name, weights in MISFITS.items():
            with pytest.raises((KeyError, RemoteError), match=name):
                await ends.sender.send(weights)
            await ends.expect(good, 3.0)
        report = await ends.sender.send(Tied(4.0))
        await ends.expect(report.version, 4.0)


@claim()
async def a_model_of_other_shapes_is_refused_whole_and_the_sender_hears_why(make: Make) -> None:
    async with make(Tied(5.0, width=4), model=functools.partial(Tied, 2.0)) as ends:
        with pytest.raises(Exception, match="weight") as caught:
            await ends.deliver()
        for worker in range(ends.size):
            assert f"worker {worker} does not have version 1" in str(getattr(caught.value, "__notes__", ""))
        await ends.expect(0, 2.0)


@claim()
async def a_model_that_is_mended_has_the_next_version_and_no_failure_is_reported(make: Make) -> None:
    async with make(Tied(5.0, width=4), model=functools.partial(Tied, 2.0)) as ends:
        await ends.receivers.serve()
        with pytest.raises(Exception, match="weight"):
            await ends.sender.send()
        await ends.receivers.widen(4)
        report = await ends.sender.send(Tied(6.0, width=4))
        assert {ack.status for ack in report.per_worker.values()} == {"applied"}
        await ends.expect(report.version, 6.0)


@claim()
async def a_layer_that_the_workers_do_not_have_is_named_with_the_first_version(make: Make) -> None:
    source = Tied(5.0)
    source.layers.append(torch.nn.Linear(3, 3))
    source.fill(5.0)
    async with make(source) as ends:
        with pytest.raises((WeightMismatch, RemoteError), match=r"layers\.2\.(weight|bias)"):
            await ends.deliver()
        await ends.expect(0, 0.0)


@claim()
async def a_second_send_is_refused_while_one_is_pending(make: Make) -> None:
    async with make() as ends:
        with pytest.raises(RuntimeError, match="No async send is pending"):
            ends.sender.wait_async()
        await ends.sender.send_async()
        with pytest.raises(RuntimeError, match="Cannot call send\\(\\) while an async send is pending"):
            ends.sender.send()
        with pytest.raises(RuntimeError, match="Cannot call send_async\\(\\) again while a previous send is pending"):
            ends.sender.send_async()
        await ends.receivers.take()
        await ends.sender.wait_async()
        await ends.deliver(Tied(2.0))
        await ends.expect(2, 2.0)


@claim()
async def a_second_send_is_refused_while_one_is_under_way(make: Make) -> None:
    async with make() as ends:
        work = ends.sender.send(Tied(1.0))
        for send in (ends.sender.send, ends.sender.send_async):
            with pytest.raises(RuntimeError, match="while another one is under way"):
                send(Tied(2.0))
        await ends.receivers.take()
        await work
        await ends.expect(1, 1.0)


@claim()
async def an_unknown_worker_is_refused_before_anything_is_sent(make: Make) -> None:
    async with make() as ends:
        for send in (ends.sender.send, ends.sender.send_async):
            with pytest.raises(ValueError, match="Worker 5 not registered"):
                send(worker_ids=[0, 5])
        assert await ends.receivers.take(0.01) == [False] * ends.size
        await ends.expect(0, 0.0)
        assert ends.sender.version == 0


@claim()
async def closed_ends_say_at_once_that_they_are_closed(make: Make) -> None:
    async with make() as ends:
        await ends.deliver()
        await ends.scheme.close()
        sender = ends.sender
        methods = (sender.send, sender.send_async, sender.wait_async, sender.connect)
        assert [method.__name__ for method in methods if not says_closed(method)] == []
        silent = await ends.receivers.refusals_when_closed()
        assert silent == [[]] * ends.size, silent
