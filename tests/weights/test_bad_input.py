"""What does not fit is refused by name before the first byte is written, whatever carries it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlinf_async import WrongAcknowledgement
from rlinf_async.errors import RemoteError, SerializationError, WeightMismatch
from tests.weights.ends import CALLED, SCHEMES, Tied, both
from tests.weights.fragile import Fragile

every_scheme = pytest.mark.parametrize("kind", SCHEMES)


def changed(**tensors: Any) -> dict[str, Any]:
    weights = {name: torch.full_like(tensor, 9.0) for name, tensor in Tied().state_dict().items()}
    return weights | {name.replace("__", "."): tensor for name, tensor in tensors.items()}


BAD: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "an unknown key": (lambda: changed(layers__7__weight=torch.zeros(3)), "layers.7.weight"),
    "another shape": (lambda: changed(layers__1__weight=torch.zeros(3, 4)), "layers.1.weight"),
    "another kind of dtype": (lambda: changed(steps=torch.zeros(1, dtype=torch.complex64)), "steps"),
}


@pytest.mark.parametrize("what", BAD)
@every_scheme
async def test_weights_that_do_not_fit_name_the_key_and_leave_everything_as_it_was(kind: str, what: str) -> None:
    make, name = BAD[what]
    async with both(kind) as ends:
        await ends.deliver(Tied(3.0))
        taking = asyncio.create_task(ends.take(0.5 if kind not in CALLED else 0.0))
        with pytest.raises((KeyError, RemoteError), match=name):
            await ends.sender.send(make())
        await taking
        assert ends.sees == {3.0}
        assert ends.receiver.version == 1
        await ends.deliver(Tied(4.0))
        assert ends.sees == {4.0}


@every_scheme
async def test_a_model_that_differs_from_the_first_version_on_is_refused_whole(kind: str) -> None:
    """A manifest that differs: another layer."""
    source = Tied(5.0)
    source.layers.append(torch.nn.Linear(3, 3))
    source.fill(5.0)
    async with both(kind, source=source) as ends:
        with pytest.raises((WeightMismatch, RemoteError), match=r"layers\.2\.(weight|bias)"):
            await ends.deliver()
        assert ends.sees == {0.0}
        assert ends.receiver.version == 0


@pytest.mark.parametrize("kind", ["multiprocess", "shared memory", "distributed", "worker"])
async def test_a_worker_that_nobody_has_registered_is_named_and_nobody_gets_anything(kind: str) -> None:
    async with both(kind) as ends:
        for send in (ends.sender.send, ends.sender.send_async):
            with pytest.raises(ValueError, match="Worker 9 not registered"):
                send(worker_ids=[0, 9])
        assert not await ends.take(0.05)
        assert (ends.sees, ends.sender.version) == ({0.0}, 0)


@every_scheme
async def test_a_send_while_another_one_is_under_way_is_refused_before_it_begins(kind: str) -> None:
    async with both(kind) as ends:
        work = ends.sender.send(Tied(1.0))
        with pytest.raises(RuntimeError, match="while another one is under way"):
            ends.sender.send(Tied(2.0))
        await asyncio.gather(ends.take(), work)
        assert ends.sees == {1.0}


@pytest.mark.parametrize("kind", ["multiprocess", "distributed"])
async def test_a_wrong_acknowledgement_is_named_and_the_send_stays_pending(kind: str) -> None:
    async with both(kind) as ends:
        sending, receiving = ends.sender._transports[0], ends.receiver._transport
        if kind == "multiprocess":  # past the link, as a loop of the user's own would
            await sending.send_weights_async("policy", Tied(1.0).state_dict())
            await receiving.receive_weights(20)
            await receiving.send_ack("bogus")
            with pytest.raises(WrongAcknowledgement, match="Expected acknowledgment 'updated', got 'bogus'"):
                await sending.wait_ack()
            return
        await ends.sender.send_async()
        assert (await receiving.receive_weights(20))[0] == "policy"
        await receiving.send_ack("bogus")
        with pytest.raises(WrongAcknowledgement, match="Expected 'updated' but got status b'bogus'"):
            await ends.sender.wait_async()
        with pytest.raises(RuntimeError, match="while an async send is pending"):
            ends.sender.send()
        assert ends.sees == {0.0}


async def test_beside_tensors_plain_values_travel_by_a_store_and_others_are_named_before_anything_is_sent() -> None:
    model, source = Fragile(), Fragile(1.0)
    async with both("distributed", model=model, source=source) as ends:
        source.order = {"victim": 5, "signal": 9}
        await ends.deliver()
        assert model.order == {"victim": 5, "signal": 9}
        source.order = object()
        with pytest.raises(SerializationError, match="'_extra_state' is object: beside tensors only plain values"):
            await ends.sender.send()
        assert ends.sees == {1.0}


async def test_a_call_that_answers_something_is_no_wrong_acknowledgement() -> None:
    """The end of a call is the acknowledgement, whatever it returns."""
    called = []
    host = SimpleNamespace(update_policy_weights_=lambda policy_or_weights: called.append(1) or "bogus")
    async with both("worker") as ends:
        ends.sender._transports[0]._remote_collector = host
        assert (await ends.sender.send()).version == 1
    assert called == [1]
