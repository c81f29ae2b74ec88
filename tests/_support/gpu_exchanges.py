"""Functions that workers with GPUs run in exchange tests; a stand-in's memory is the CPU's."""

from __future__ import annotations

import os
from typing import Any

import torch

from rlinf_async._transports.devices.own_gpu import OwnGpu
from rlinf_async._worker import context
from rlinf_async.errors import DeadlineExceeded, RLinfAsyncError
from tests._support.exchanges import same
from tests._support.fake_gpu_memory import FileMemory, StandIn, work_on

MiB = 1 << 20
COPIES: list[int] = []
"""Bytes of tensors that this process copied from a GPU for the CPU's way."""


def stand_in(worker: Any, way: str) -> None:
    worker.kept["device"] = "cpu"
    gpu = StandIn(way)
    gpu.copies = COPIES
    work_on(gpu)


def take_gpu(worker: Any, index: int, alone: bool) -> None:
    """CUDA is in use from here on; ``alone``, it shows no other GPU.

    The nodes of the tests have none, so that their workers see none until here.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = str(index) if alone else "0,1"
    torch.cuda.set_device(0 if alone else index)
    worker.kept["device"] = "cuda"
    worker.kept["kept"] = torch.ones(1, device="cuda")
    to_cpu = OwnGpu.to_cpu

    def count(own: OwnGpu, flat: torch.Tensor) -> memoryview:
        COPIES.append(flat.nbytes)
        return to_cpu(own, flat)

    OwnGpu.to_cpu = count  # type: ignore[method-assign]


def filled(worker: Any, nbytes: int, value: int) -> torch.Tensor:
    return torch.full((nbytes,), value, dtype=torch.uint8, device=worker.kept["device"])


def meet(worker: Any, other: str) -> None:
    """Two rounds by way of the CPU; then both know of each other."""
    for _ in range(2):
        worker.send(filled(worker, MiB, 1), other, worker._rank)
        assert worker.recv(other, worker._rank).sum() == MiB
    COPIES.clear()


def ways(worker: Any) -> list[str]:
    """To whom this worker has links, of which kinds."""
    peers = context.require_exchange()._mailbox.peers._peers.values()
    return sorted(name for peer in peers for name in peer.links)


def copies(worker: Any) -> list[int]:
    return COPIES


# -- values ------------------------------------------------------------------------------------------------------------


def values(worker: Any) -> dict[str, Any]:
    device = worker.kept["device"]
    big = torch.randn(300, 1100, generator=torch.Generator().manual_seed(7)).to(device)
    on_cpu = torch.arange(100_000)
    return {
        "alone": big,
        "turned": big.t(),
        "every other": big[:, ::2],
        "bfloat16": big.to(torch.bfloat16),
        "requires grad": big.clone().requires_grad_(),
        "small": torch.arange(5, device=device),
        "tied": [big, big.view(-1), {"again": big}],
        "mixed": {"gpu": big, "cpu": on_cpu, "inside": [(big * 2, "text"), {"small": big[:2, :2], "none": None}]},
    }


def ask_for_echoes(worker: Any, other: str) -> list[str]:
    """Names of the values that came back changed, or on another device."""
    wrong = []
    for name, value in values(worker).items():
        worker.send(value, other, worker._rank)
        if not same(worker.recv(other, worker._rank), value):
            wrong.append(name)
    worker.send(value, other, worker._rank, piggyback_payload={"version": 3})
    wrong += ["piggyback"] * (not same(worker.recv(other, worker._rank), (value, {"version": 3})))
    return wrong


def echo(worker: Any, other: str) -> None:
    for _ in range(len(values(worker)) + 1):
        worker.send(worker.recv(other, worker._rank), other, worker._rank)


def send_changing_tensors(worker: Any, other: str) -> None:
    """Each is written anew as soon as it is sent."""
    tensor = filled(worker, 3 * MiB, 0)
    for number in range(1, 6):
        tensor.fill_(number)
        worker.send(tensor, other, worker._rank)
        tensor.fill_(99)
        worker.send_tensor(tensor.fill_(number), other, worker._rank)
        tensor.fill_(99)


def recv_changing_tensors(worker: Any, other: str) -> list[bool]:
    right, target = [], filled(worker, 3 * MiB, 0)
    for number in range(1, 6):
        received = worker.recv(other, worker._rank)
        right.append(bool((received == number).all()) and received.device.type == worker.kept["device"])
        worker.recv_tensor(target, other, worker._rank)
        right.append(bool((target == number).all()))
    return right


def both_ways(worker: Any, other: str, mib: int) -> bool:
    """Blocking sends that cross, several at once, then the receives."""
    sent = [worker.send(filled(worker, mib * MiB, n), other, worker._rank, async_op=True) for n in range(4)]
    worker.send(filled(worker, mib * MiB, 9), other, worker._rank)
    received = [worker.recv(other, worker._rank) for _ in range(5)]
    for work in sent:
        work.wait()
    return all(bool((each == n).all()) for each, n in zip(received, (0, 1, 2, 3, 9), strict=True))


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def break_memory(worker: Any) -> None:
    """From now on, nobody's memory can be opened here."""

    def refuse(*_: Any) -> torch.Tensor:
        raise RuntimeError("the driver does not want to")

    FileMemory.open = refuse  # type: ignore[method-assign]


def send_in_time(worker: Any, other: str, nbytes: int, seconds: float) -> str:
    try:
        worker.send(filled(worker, nbytes, 5), other, worker._rank, timeout=seconds)
    except DeadlineExceeded:
        return "late"
    return "sent"


def receive_in_time(worker: Any, other: str, seconds: float) -> str:
    try:
        return str(worker.recv(other, worker._rank, timeout=seconds).nbytes)
    except DeadlineExceeded:
        return "late"


def send_without_waiting(worker: Any, other: str, nbytes: int) -> None:
    worker.kept["work"] = worker.send(filled(worker, nbytes, 5), other, worker._rank, async_op=True)


def fail_to_send(worker: Any, other: str, nbytes: int) -> str:
    try:
        worker.send(filled(worker, nbytes, 5), other, worker._rank)
    except RLinfAsyncError as error:
        return str(error)
    return "sent"


async def begin_to_receive(worker: Any, other: str) -> None:
    worker.kept["receiving"] = worker.recv(other, worker._rank)


def receive_what_is_there(worker: Any, other: str) -> int | str:
    """Its size, or why there is nothing."""
    try:
        received = worker.recv(other, worker._rank)
    except RLinfAsyncError as error:
        return str(error)
    assert bool((received == 5).all())
    return int(received.nbytes)
