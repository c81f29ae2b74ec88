"""Unexpected answers, and values that cannot be sent; the suite (``contract``) has the rest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async import ModuleTransformScheme, WrongAcknowledgement
from rlinf_async.errors import ConfigError, SerializationError
from tests._support.dying_model import Fragile
from tests.weights.ends import Tied, both


async def test_several_hosts_of_one_model_are_refused_before_anything_is_sent() -> None:
    calls: list[Any] = []
    one, other = (SimpleNamespace(_update_weights_tensordict=lambda params: calls.append(params)) for _ in range(2))
    sending = ModuleTransformScheme()
    with pytest.raises(ConfigError, match="'net' is hosted by one worker, and 2 were given"):
        sending.init_on_sender("net", actor_refs=[one, other], source_model=Tied())
    with pytest.raises(RuntimeError, match=r"Must call init_on_sender\(\)"):
        sending.get_sender()
    context = SimpleNamespace(actor_refs=[one, other], net=None)
    sending.init_on_sender("net", context, source_model=Tied())
    with pytest.raises(ConfigError, match="'net' is hosted by one worker, and 2 were given"):
        sending.get_sender().send(Tied())
    assert not calls
    context.net = SimpleNamespace(_actor=one)
    await sending.get_sender().send(Tied())
    sending.init_on_sender("net", actor_refs=[one] * 3, source_model=Tied())
    await sending.get_sender().send(Tied())
    assert len(calls) == 2
    await sending.close()


async def test_the_host_of_a_model_that_is_there_again_gets_what_is_sent() -> None:
    calls: list[int] = []
    sending = ModuleTransformScheme()
    hosts = [SimpleNamespace(_update_weights_tensordict=lambda params, n=n: calls.append(n)) for n in range(2)]
    sending.init_on_sender("net", actors=hosts[:1], source_model=Tied())
    await sending.get_sender().send()
    await sending.get_sender().replace(0, hosts[1])
    await sending.get_sender().send()
    assert calls == [0, 1]
    await sending.close()


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
        ends.sender._transports[0].callee = host
        assert (await ends.sender.send()).version == 1
    assert called == [1]
