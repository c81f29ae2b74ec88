"""Messages from GPU to GPU, frame by frame, over links that the test controls."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from rlinf_async._messaging import outbox, peers
from rlinf_async._messaging.state import message_facts
from rlinf_async._transports.devices.gpu_link_choice import CUDA_IPC, NCCL, STAGED
from rlinf_async.errors import DeadlineExceeded, TransferFailed
from tests._support.fake_exchanges import FakeDeviceLink, Network
from tests._support.fake_gpu_memory import StandIn

BIG = torch.arange(100_000)


class Gpu(StandIn):
    """Its links deliver when they are told to."""

    def make_link(self, name: str, post: Any, first: bool, address: str) -> Any:
        self.links.append(FakeDeviceLink(name))
        return self.links[-1]


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network(far=False)
    yield network
    network.close()
    for link in FakeDeviceLink.made:
        link.sent.clear()
        link.received.clear()
        link.discarded.clear()
    FakeDeviceLink.made.clear()
    gc.collect()  # errors that were raised hold on to the frames that they came through


class Gpus:
    """Of the two workers, once each has asked for its own."""

    def __init__(self, way: str) -> None:
        self.a, self.b = Gpu(way, "a"), Gpu(way, "b")
        self.found: list[Gpu] = []

    def find(self) -> Gpu:
        self.found.append(self.b if self.found else self.a)
        return self.found[-1]

    def bring(self, transfer: int = 1) -> None:
        """From ``a`` to ``b``; the sender is not told."""
        _, tensors = self.a.links[0].sent[transfer]
        self.b.links[0].received[transfer]._settle([tensor.clone() for tensor in tensors])


def meet(network: Network, way: str, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    """Both workers use a GPU and have heard of the other's."""
    gpus = Gpus(way)
    monkeypatch.setattr(peers, "_find_own_gpu", gpus.find)
    for _ in range(2):
        send(network, BIG)
        network.deliver()
        recv(network).wait(0)
    network.deliver()
    assert len(gpus.found) == 2
    gpus.a.copies.clear()
    network.seen.clear()
    return gpus


@pytest.fixture
def gpus(network: Network, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    return meet(network, CUDA_IPC, monkeypatch)


def send(network: Network, value: Any, timeout: float | None = None) -> Any:
    return network.a.send(value, "b", 0, None, None, timeout)


def recv(network: Network) -> Any:
    return network.b.recv("a", 0, None, None)


def timers(network: Network) -> list[Callable[[], None]]:
    """Besides that of the name that was looked up."""
    return [callback for seconds, callback in network.client("a").timers if 10 <= seconds <= 60]


# -- who knows of which GPU --------------------------------------------------------------------------------------------


def test_two_tell_each_other_of_their_gpus_once_and_large_tensors_take_the_links_from_then_on(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = Gpus(CUDA_IPC)
    monkeypatch.setattr(peers, "_find_own_gpu", gpus.find)
    for _ in range(3):
        send(network, BIG)
        network.deliver()
        recv(network)
        network.deliver()
    assert network.words() == [
        message_facts.INTRODUCE,
        message_facts.DATA,  # by which a comes to know that it uses a GPU
        message_facts.GPU,  # with the first tensor that is seen to be there
        message_facts.DATA,
        message_facts.INTRODUCE,
        message_facts.GPU,  # with the next receive
        message_facts.DATA,
    ]
    assert network.seen[-1][4][6] == [CUDA_IPC, 1, [BIG.nbytes], [0]]
    assert gpus.a.copies == [BIG.nbytes]  # the second


def test_workers_without_gpus_hear_nothing_of_them(network: Network) -> None:
    for _ in range(3):
        send(network, {"large": BIG, "small": 1})
        network.deliver()
        recv(network)
    network.deliver()
    assert network.words() == [message_facts.INTRODUCE, *[message_facts.DATA] * 3]


def test_a_peer_without_a_gpu_gets_all_by_way_of_the_cpu_and_is_told_once(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(CUDA_IPC)
    monkeypatch.setattr(peers, "_find_own_gpu", lambda: gpu)
    send(network, BIG)
    monkeypatch.setattr(peers, "_find_own_gpu", lambda: None)
    for _ in range(3):
        send(network, BIG)
    network.deliver()
    assert all(torch.equal(recv(network).wait(0), BIG) for _ in range(4))
    assert network.words().count(message_facts.GPU) == 1
    assert gpu.links == []


def test_a_gpu_that_cannot_be_described_is_asked_once_and_left_alone(
    network: Network, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def find() -> None:
        asked.append(1)
        raise RuntimeError("the driver is too old")

    monkeypatch.setattr(peers, "_find_own_gpu", find)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            send(network, BIG)
    assert len(asked) == 1
    assert "by way of the CPU: the driver is too old" in caplog.text


@pytest.mark.parametrize("way", [CUDA_IPC, NCCL, STAGED])
def test_the_way_is_the_one_that_leads_from_one_gpu_to_the_other(
    network: Network, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = meet(network, way, monkeypatch)
    send(network, BIG)
    network.deliver()
    assert [link.name for link in (*gpus.a.links, *gpus.b.links)] == [way] * 2


# -- what travels ------------------------------------------------------------------------------------------------------

Make = Callable[[], Any]


def tied() -> list[torch.Tensor]:
    return [BIG, BIG.view(100, 1000), BIG]


def mixed() -> dict[str, Any]:
    return {
        "large": BIG,
        "small": torch.ones(10),
        "inside": [(BIG * 2, "text"), {"turned": BIG.view(100, 1000).t()}],
        "step": 3,
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.stride() == other.stride()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


def test_where_the_part_that_is_not_on_the_gpu_may_not_be_shared_all_goes_by_way_of_the_cpu(
    network: Network, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "fits", lambda nbytes: False)
    sending, receiving = send(network, BIG), recv(network)
    network.deliver()
    assert sending.done()
    assert torch.equal(receiving.wait(0), BIG)
    assert (gpus.a.links, gpus.a.copies) == ([], [BIG.nbytes])


@pytest.mark.parametrize("make", [lambda: BIG, tied, mixed])
def test_whatever_holds_large_tensors_arrives_as_it_was_and_nothing_is_copied_to_the_cpu(
    network: Network, gpus: Gpus, make: Make
) -> None:
    value, receiving = make(), recv(network)
    sending = send(network, value)
    network.deliver()
    assert not sending.done()
    gpus.bring()
    network.deliver()
    assert sending.done()
    assert same(value, receiving.wait(0))
    assert gpus.a.copies == []
    assert sum(len(frame[5]) for frame in network.seen) < 5_000


def test_tied_tensors_stay_tied_and_what_arrives_is_what_the_link_has_brought(network: Network, gpus: Gpus) -> None:
    receiving = recv(network)
    send(network, tied())
    network.deliver()
    gpus.bring()
    one, turned, again = receiving.wait(0)
    (brought,) = gpus.b.links[0].received[1].wait(0)
    assert one.data_ptr() == turned.data_ptr() == again.data_ptr() == brought.data_ptr()


def test_large_memory_of_the_cpu_rides_on_the_frame_beside_it(
    network: Network, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cpu = torch.ones(70_000, dtype=torch.float64)
    monkeypatch.setattr(gpus.a, "keeps", lambda obj: isinstance(obj, torch.Tensor) and obj.dtype == torch.int64)
    receiving = recv(network)
    send(network, {"cpu": on_cpu, "gpu": BIG, "more": on_cpu + 1})
    network.deliver()
    gpus.bring()
    received = receiving.wait(0)
    assert same(received, {"cpu": on_cpu, "gpu": BIG, "more": on_cpu + 1})
    assert network.seen[0][4][6] == [CUDA_IPC, 1, [BIG.nbytes], [1]]


def test_send_tensor_fills_the_receivers_own(network: Network, gpus: Gpus) -> None:
    target = torch.zeros(100, 1000, dtype=torch.int64)
    receiving = network.b.recv_tensor(target, "a", 0, None, None)
    sending = network.a.send_tensor(BIG.view(100, 1000), "b", 0, None, None)
    network.deliver()
    gpus.bring()
    network.deliver()
    assert receiving.wait(0) is None
    assert sending.wait(0) is None
    assert torch.equal(target, BIG.view(100, 1000))
    assert gpus.a.copies == []


def test_to_oneself_it_goes_by_way_of_the_cpu(network: Network, gpus: Gpus) -> None:
    network.a.send(BIG, "a", 0, None, None, None)
    network.deliver()
    assert torch.equal(network.a.recv("a", 0, None, None).wait(0), BIG)
    assert gpus.a.links == []


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", ["sender", "receiver", "both"])
@pytest.mark.parametrize("kind", [TransferFailed, RuntimeError, MemoryError])
@pytest.mark.parametrize("make", [lambda: BIG, mixed])
def test_what_a_link_loses_arrives_once_by_way_of_the_cpu(
    network: Network, gpus: Gpus, failing: str, kind: type[Exception], make: Make
) -> None:
    value, receiving, second, error = make(), recv(network), recv(network), kind("cut")
    sending = send(network, value)
    network.deliver()
    if failing != "receiver":
        gpus.a.links[0].sent[1][0]._settle(error=error)
    if failing == "sender":
        gpus.bring()
    else:
        gpus.b.links[0].received[1]._settle(error=error)
    network.deliver()
    assert sending.wait(0) is None
    assert same(receiving.wait(0), value)
    assert not second.done()
    send(network, "next")
    network.deliver()
    assert second.wait(0) == "next"
    assert network.words().count(message_facts.CONTENT) == 1


@pytest.mark.parametrize("where", ["a", "b"])
def test_a_link_that_cannot_be_made_costs_nothing_but_the_cpus_way(
    network: Network, gpus: Gpus, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Any] = []

    def refuse(*link: Any) -> None:
        tries.append(link)
        raise ImportError("no such library")

    monkeypatch.setattr(getattr(gpus, where), "make_link", refuse)
    for _ in range(5):
        sending = send(network, BIG)
        network.deliver()
        assert torch.equal(recv(network).wait(0), BIG)
        assert sending.done()
    assert len(tries) == 3, "it is not tried for ever"


def test_a_first_transfer_that_brings_nothing_for_long_is_given_up_for_the_cpus_way(
    network: Network, gpus: Gpus
) -> None:
    sending, receiving = send(network, BIG), recv(network)
    network.deliver()
    (lose_patience,) = timers(network)
    lose_patience()
    network.deliver()
    assert torch.equal(receiving.wait(0), BIG)
    assert sending.done()
    assert len(gpus.a.links[0].discarded) == 1


def test_nobody_loses_patience_with_a_link_that_has_worked(network: Network, gpus: Gpus) -> None:
    for transfer in (1, 2):
        send(network, BIG)
        network.deliver()
        gpus.bring(transfer)
        network.deliver()
    send(network, BIG)
    network.deliver()
    (lose_patience,) = timers(network)
    lose_patience()
    assert not any(isinstance(error, TransferFailed) for error in gpus.a.links[0].discarded)


def test_a_deadline_in_mid_transfer_withdraws_it_and_spares_what_follows(network: Network, gpus: Gpus) -> None:
    sending, receiving = send(network, BIG, 0.01), recv(network)
    network.deliver()
    with pytest.raises(DeadlineExceeded):
        sending.wait()
    assert len(gpus.a.links[0].discarded) == 1
    send(network, "next")
    network.deliver()
    assert receiving.wait(0) == "next"
    assert message_facts.CONTENT not in network.words()
