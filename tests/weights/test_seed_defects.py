"""Defects of TorchRL's schemes that the conformance suite does not claim, one test each."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlinf_async import (
    DistributedTransport,
    ModuleTransformScheme,
    MPTransport,
    MultiProcessWeightSyncScheme,
    SharedMemWeightSyncScheme,
    WorkerWeightSyncScheme,
)
from rlinf_async.errors import DeadlineExceeded
from tests.weights.ends import Host, Tied, both

Pipes = tuple[Any, Any]


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        yield ours, theirs


def new_store() -> Any:
    """Not a fixture, which would outlive the test."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.mark.parametrize("form", ["tensordict", "state_dict"])
async def test_d2_d3_what_is_sent_between_processes_of_a_job_arrives_in_either_form(form: str) -> None:
    store = new_store()
    weights: Any = {"layer.weight": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor([3])}
    if form == "tensordict":
        weights = TensorDict({"layer": {"weight": weights["layer.weight"]}, "steps": weights["steps"]})
    sending, receiving = DistributedTransport(store, 1), DistributedTransport(store, 1)
    work = sending.send_weights("critic", weights)
    model_id, found = await receiving.receive_weights(20)
    await receiving.send_ack()
    await work
    assert model_id == "critic"
    assert type(found) is type(weights)
    weight = found["layer", "weight"] if form == "tensordict" else found["layer.weight"]
    assert torch.equal(weight, torch.arange(6.0).reshape(2, 3))
    assert torch.equal(found["steps"], torch.tensor([3]))
    await sending.close()
    await receiving.close()


def test_d4_looking_for_weights_ends_when_its_time_is_over() -> None:
    store = new_store()
    transport = DistributedTransport(store, 1)
    begun = time.monotonic()
    assert transport.receive_weights(timeout=0.05) is None
    assert transport.receive_weights(timeout=0) is None
    assert time.monotonic() - begun < 5
    transport.close()


@pytest.mark.parametrize("sync", [True, False])
async def test_d5_two_quick_sends_arrive_one_after_the_other_as_they_were(sync: bool) -> None:
    store = new_store()
    sending, receiving = DistributedTransport(store, 1, sync), DistributedTransport(store, 1, sync)
    weights = {"w": torch.full((1000,), 1.0)}
    await sending.send_weights_async("policy", weights)
    weights["w"].fill_(2.0)
    await sending.send_weights_async("policy", weights)
    weights["w"].fill_(99.0)
    found = []
    for _ in range(2):
        found.append((await receiving.receive_weights(20))[1]["w"])
        await receiving.send_ack()
    await sending.wait_ack()
    assert [set(each.tolist()) for each in found] == [{1.0}, {2.0}]
    await sending.close()
    await receiving.close()


@pytest.mark.parametrize(
    ("kind", "handles"), [(WorkerWeightSyncScheme, "remote_collectors"), (ModuleTransformScheme, "actor_refs")]
)
async def test_d6_a_context_can_be_given(kind: Any, handles: str) -> None:
    model, source = Tied(), Tied(4.0)
    receiving, sending = kind(), kind()
    worker = SimpleNamespace(policy=model, module=model)
    receiving.init_on_worker("policy", worker)
    host = Host(receiving.get_receiver())
    trainer = SimpleNamespace(policy=source, **{handles: [host]})
    sending.init_on_sender("policy", trainer)
    await sending.get_sender().send()
    assert model.values() == {4.0}
    await sending.close()
    await receiving.close()


async def test_d7_a_hosted_model_is_updated_without_a_context_and_never_in_silence() -> None:
    model = Tied()
    receiving, sending = ModuleTransformScheme(), ModuleTransformScheme()
    receiving.init_on_worker("env.transform[0]", model=model)
    sending.init_on_sender("env.transform[0]", actors=[Host(receiving.get_receiver())])
    await sending.get_sender().update_weights(Tied(3.0))
    assert model.values() == {3.0}
    await sending.get_sender().send(Tied(5.0))
    assert model.values() == {5.0}
    with pytest.raises(ValueError, match="actor_refs \\(or actors\\) must be provided via context or kwargs"):
        ModuleTransformScheme().init_on_sender("env.transform[0]")
    await sending.close()
    await receiving.close()


def test_d9_a_worker_that_does_not_answer_is_named_when_its_time_is_over(pipes: Pipes) -> None:
    scheme = MultiProcessWeightSyncScheme(ack_timeout=0.2)
    scheme.init_on_sender("policy", pipes=[pipes[0]])
    with pytest.raises(DeadlineExceeded, match="receiver 0"):
        scheme.get_sender().send(Tied(1.0))
    with pytest.raises(DeadlineExceeded, match="receiver 0"):
        scheme.get_sender().send(Tied(2.0))
    scheme.close()
    with pytest.raises(DeadlineExceeded, match="no acknowledgement 'updated' has come within"):
        MPTransport(pipes[0], timeout=0.2).send_weights("policy", {"w": torch.ones(1)})


async def test_d10_a_change_after_the_send_is_not_seen(pipes: Pipes) -> None:
    weights = {"w": torch.ones(1000)}
    sending, receiving = MPTransport(pipes[0]), MPTransport(pipes[1])
    await sending.send_weights_async("policy", weights)
    weights["w"].fill_(99.0)
    _, found = await receiving.receive_weights(5)
    assert set(found["w"].tolist()) == {1.0}
    assert not weights["w"].is_shared()


async def test_d11_nobody_sees_the_trainers_work_before_it_is_sent() -> None:
    source = Tied(1.0)
    async with both("shared memory", source=source, apply="map", strategy="state_dict") as ends:
        await ends.deliver(source.state_dict())
        source.fill(99.0)
        shown = ends.schemes[0].policy_weights["policy"]
        assert ends.sees == {1.0}
        assert set(shown["layers.0.weight"].flatten().tolist()) == {1.0}
        assert not any(parameter.is_shared() for parameter in source.parameters())


def test_d13_a_pickled_scheme_holds_no_pipe(pipes: Pipes) -> None:
    scheme = SharedMemWeightSyncScheme({"policy": TensorDict({"w": torch.zeros(2)})})
    scheme.init_on_sender("policy", pipes=[pipes[0]])
    copy = pickle.loads(pickle.dumps(scheme))
    assert torch.equal(copy.policy_weights["policy"]["w"], torch.zeros(2))
    assert copy.transport.pipes == []
    del copy
    gc.collect()
    pipes[0].send("still open")
    assert pipes[1].recv()[1] == "register_shared_weights"
    assert pipes[1].recv() == "still open"
    scheme.close()


class _Fake:
    """A transport of a user's own, of plain blocking code."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send_weights(self, model_id: str, weights: Any) -> None:
        self.sent.append(weights)

    def receive_weights(self, timeout: float = 1.0) -> None:
        return None


class _FakeAsync(_Fake):
    def send_weights_async(self, model_id: str, weights: Any) -> None:
        self.sent.append(weights)

    def wait_ack(self) -> None:
        pass


def test_d14_an_async_send_that_one_transport_cannot_do_reaches_nobody(pipes: Pipes) -> None:
    scheme = MultiProcessWeightSyncScheme()
    scheme.init_on_sender("policy", pipes=[])
    sender = scheme.get_sender()
    can, cannot = _FakeAsync(), _Fake()
    sender._transports = {0: can, 1: cannot}
    with pytest.raises(RuntimeError, match=r"transport of type .*_Fake.* does not support async send\."):
        sender.send_async({"w": torch.ones(1)})
    assert can.sent == cannot.sent == []
    assert sender.send({"w": torch.ones(1)}).version == 1
    assert len(can.sent) == len(cannot.sent) == 1
    scheme.close()


async def test_d15_what_else_is_said_over_the_pipe_is_neither_lost_nor_taken_for_an_answer() -> None:
    async with both("multiprocess") as ends:
        ours, theirs = ends.sender._transports[0].pipe, ends.receiver._transport.pipe
        await ends.deliver()
        ours.send((None, "continue"))
        assert not await ends.take(0.05)
        assert theirs.recv() == (None, "continue")
        theirs.send(({"reward": 1.0}, "rollout"))
        assert ours.recv() == ({"reward": 1.0}, "rollout")
        await ends.deliver(Tied(2.0))
        assert ends.sees == {2.0}


async def test_d15_a_message_of_somebody_elses_stays_and_holds_up_nothing() -> None:
    async with both("multiprocess") as ends:
        await ends.deliver()
        ends.sender._transports[0].pipe.send((None, "continue"))
        await ends.deliver(Tied(2.0))
        assert ends.sees == {2.0}
        assert ends.receiver._transport.pipe.recv() == (None, "continue")


class _Scripted:
    """A transport that brings what a test wants."""

    def __init__(self) -> None:
        self.next: Any = None
        self.version: int | None = None
        self.answers: list[Any] = []

    def send_weights(self, model_id: str, weights: Any) -> None:
        raise NotImplementedError

    def receive_weights(self, timeout: float = 1.0) -> Any:
        return self.next

    def send_ack(self, message: str = "updated") -> None:
        self.answers.append(message)

    def send_error(self, error: BaseException) -> None:
        self.answers.append(error)


def test_d16_a_doubled_message_is_answered_a_late_one_is_refused_and_neither_is_applied(pipes: Pipes) -> None:
    model = Tied(0.0)
    scheme = MultiProcessWeightSyncScheme()
    scheme.init_on_worker("policy", pipe=pipes[1], model=model)
    receiver = scheme.get_receiver()
    transport = receiver._transport = _Scripted()
    for version, value, is_new in ((2, 2.0, True), (2, 7.0, False), (1, 1.0, None), (3, 3.0, True)):
        transport.next, transport.version = ("policy", Tied(value).state_dict()), version
        if is_new is None:
            with pytest.raises(ValueError, match=r"not after version 2, .* goes on from there with send\(version=3\)"):
                receiver.receive()
            assert isinstance(transport.answers.pop(), ValueError)
        else:
            assert receiver.receive() is is_new
    assert model.values() == {3.0}
    assert receiver.version == 3
    assert transport.answers == ["updated"] * 3
    transport.next, transport.version = ("critic", Tied(9.0).state_dict()), 4
    with pytest.raises(ValueError, match="weights of 'critic' have come to the receiver of 'policy'"):
        receiver.receive()
    assert isinstance(transport.answers[-1], ValueError)
    assert model.values() == {3.0}
    scheme.close()
