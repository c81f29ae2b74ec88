"""Arguments of the methods that receive weights."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from rlinf_async import RPCTransport, WorkerActorTransport, WorkerTransport, WorkerWeightSyncScheme
from tests.weights.ends import Tied


class Records:
    """Workers of every kind; ``version`` is what they were told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any]] = []


class Told(Records):
    def update_policy_weights_(self, policy_or_weights: Any, version: int | None = None) -> None:
        self.calls.append((policy_or_weights, version))

    async def _update_weights_state_dict(self, state_dict: Any, *, version: int) -> None:
        self.calls.append((state_dict, version))


class NotTold(Records):
    def update_policy_weights_(self, policy_or_weights: Any, **others: Any) -> None:
        self.calls.append((policy_or_weights, others))

    async def _update_weights_state_dict(self, state_dict: Any) -> None:
        self.calls.append((state_dict, None))


@pytest.mark.parametrize("name", ["worker", "actor"])
def test_a_method_is_told_the_version_if_it_has_a_parameter_for_it(name: str) -> None:
    told, not_told = Told(), NotTold()
    for worker in (told, not_told):
        transport = WorkerTransport(worker) if name == "worker" else WorkerActorTransport(worker, "state_dict")
        transport.send_weights("policy", {"w": 1}, 7)
        transport.send_weights_async("policy", {"w": 2}, 8)
        transport.wait_ack()
        transport.close()
    assert told.calls == [({"w": 1}, 7), ({"w": 2}, 8)]
    assert not_told.calls in ([({"w": 1}, {}), ({"w": 2}, {})], [({"w": 1}, None), ({"w": 2}, None)])


def test_a_call_of_torchs_tells_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def call(to: Any, function: Any, args: Any, kwargs: Any, timeout: float) -> Any:
        asked.append((to, args[0], kwargs))
        future: torch.futures.Future[None] = torch.futures.Future()
        future.set_result(None)
        return future

    monkeypatch.setattr(rpc, "rpc_async", call)
    for kind in (Told, NotTold):
        RPCTransport("worker1", "rref", kind).send_weights("policy", {"w": 1}, 7)
    assert asked == [("worker1", "rref", {"version": 7}), ("worker1", "rref", {})]


def test_what_tells_nobody_its_parameters_is_called_without() -> None:
    worker = Records()
    worker.update_policy_weights_ = dict  # type: ignore[attr-defined]  # a type without a signature
    WorkerTransport(worker).send_weights("policy", {"w": 1}, 7)


async def test_a_worker_whose_method_is_not_told_counts_by_itself() -> None:
    model, receiving, sending = Tied(), WorkerWeightSyncScheme(), WorkerWeightSyncScheme()
    receiving.init_on_worker("policy", model=model)
    receiver = receiving.get_receiver()
    worker = SimpleNamespace(update_policy_weights_=lambda policy_or_weights: receiver.apply_weights(policy_or_weights))
    sending.init_on_sender("policy", remote_collectors=[worker], source_model=Tied(2.0))
    for version in (1, 2):
        assert (await sending.get_sender().send(version=version * 7)).version == version * 7
        assert (receiver.version, model.values()) == (version, {2.0})
    await sending.close()
    await receiving.close()


async def test_of_two_calls_at_once_the_later_version_stays() -> None:
    model, scheme = Tied(), WorkerWeightSyncScheme()
    scheme.init_on_worker("policy", model=model)
    receiver = scheme.get_receiver()
    async with receiver.reading():
        works = [asyncio.ensure_future(receiver.apply_weights(Tied(float(v)).state_dict(), v)) for v in (3, 2, 3)]
        for _ in range(3):
            await asyncio.sleep(0)  # both wait for the reader
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), ValueError, type(None)]
    assert (receiver.version, model.values()) == (3, {3.0})
    await scheme.close()
