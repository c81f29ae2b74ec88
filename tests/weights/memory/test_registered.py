"""Copies between GPU and registered shared memory, with a stand-in for CUDA; where memory is mapped."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import threading
from typing import Any

import pytest
import torch

from rlinf_async._core import mapping
from rlinf_async._core.mapping import map_memory
from rlinf_async._core.segment import allocate_segment
from rlinf_async._transports.devices import device_memory
from rlinf_async.weights.memory import cuda, slot
from rlinf_async.weights.memory.gpus import Registrar
from tests._support.fake_gpus import GPU, FakeGpus, NoGpus
from tests._support.weight_parts import Cuda
from tests.weights.pairs import pair
from tests.weights.pipe_child import values_of


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((3, 5), float(value)), "b": torch.full((400_000,), float(value))}


@pytest.mark.parametrize("where", ["source", "destination"])
async def test_slots_are_registered_once_where_a_gpu_copies_and_given_back_before_they_are_unmapped(where: str) -> None:
    gpus = FakeGpus()
    source, destination = weights(0), weights(0)
    gpus.put(source if where == "source" else destination)
    async with pair(source, destination, gpus=gpus) as (publisher, _):
        for version in range(1, 6):
            for tensor in source.values():
                tensor.fill_(version)
            await (await publisher.publish(source))
            assert values_of(destination) == {version}
        way, after = ("D2H", {GPU: "mark"}) if where == "source" else ("H2D", {})
        assert gpus.done("copy") == [[way, after]] * 5
        assert [facts[1] for facts in gpus.registered.values()] == [where == "destination"] * 2
    assert gpus.registered == {}


class Telling(FakeGpus):
    """Says when memory has been registered."""

    def __init__(self) -> None:
        super().__init__()
        self.has_registered = threading.Event()

    def register(self, *facts: Any, **options: Any) -> None:
        super().register(*facts, **options)
        self.has_registered.set()


async def test_readers_go_on_while_memory_is_registered() -> None:
    gpus = Telling()
    source, destination = weights(0), gpus.put(weights(0))
    async with pair(source, destination, gpus=gpus) as (publisher, (subscriber,)):
        async with subscriber.reading():
            source["b"].fill_(1)
            handle = await publisher.publish(source)
            assert await asyncio.to_thread(gpus.has_registered.wait, 20), "it waits for the reader"
            assert gpus.done("copy") == []
        await handle
        assert float(destination["b"].min()) == 1
        assert [call[0] for call in gpus.calls] == ["register", "copy"]


async def test_a_gpu_that_is_refused_registered_memory_is_copied_from_all_the_same_and_one_warning_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gpus = FakeGpus("register")
    source, destination = gpus.put(weights(0)), weights(0)
    with caplog.at_level(logging.WARNING, "rlinf_async"):
        async with pair(source, destination, gpus=gpus) as (publisher, _):
            for version in range(1, 4):
                source["b"].fill_(version)
                await (await publisher.publish(source))
                assert float(destination["b"].min()) == version
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        "weights are copied from and to cuda:0 at less than full speed: register is refused"
    ]
    assert len(gpus.done("register")) == 1


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_weights_of_the_cpu_ask_nothing_of_cuda(apply: str) -> None:
    source, destination = weights(0), weights(0)
    async with pair(source, destination, gpus=NoGpus(), apply=apply) as (publisher, _):
        for version in range(1, 4):
            source["b"].fill_(version)
            await (await publisher.publish(source))
            assert float(destination["b"].min()) == version


def test_where_cuda_is_not_in_use_nothing_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("this may bring CUDA up"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: pytest.fail("this brings CUDA up"))
    tensors = [torch.zeros(1)]
    assert Cuda().places(tensors) == set()
    assert Cuda().only_place(tensors) is None
    assert Cuda().mark(set()) == {}


class Runtime:
    """CUDA's runtime, which refuses what is read-only."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            facts = [each.value for each in arguments if isinstance(each, ctypes._SimpleCData)]
            self.calls.append((name, *facts))
            return 801 if name == "cudaHostRegister" and facts[2] & 8 else 0

        return call


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    found = Runtime()
    monkeypatch.setattr(cuda, "cuda_runtime", lambda: found)
    monkeypatch.setattr(device_memory, "cuda_runtime", lambda: found)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return found


def memory_of(mode: int, *, writable: bool) -> Any:
    """Two mapped pages of a file that is open for that."""
    fd = allocate_segment(8192)
    opened = os.open(f"/proc/self/fd/{fd}", mode)
    try:
        return map_memory(opened, 8192, writable=writable)
    finally:
        os.close(fd)
        os.close(opened)


def test_cuda_is_told_how_memory_is_mapped_once_and_hears_that_it_goes_whoever_lets_go_of_it_last(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    memory = memory_of(os.O_RDWR, writable=True)
    at = ctypes.addressof(memory)
    unregister = Registrar(Cuda(), read_only=False).register(memory, GPU)
    assert unregister is not None
    assert runtime.calls == [("cudaHostRegister", at, 8192, 1)]
    tensor = torch.frombuffer(memory, dtype=torch.uint8, count=5)
    del memory
    assert len(runtime.calls) == 1
    del tensor
    unregister()
    assert runtime.calls[1:] == [("cudaHostUnregister", at)]
    assert caplog.messages == []


def test_memory_that_is_let_go_of_is_still_mapped_when_cuda_hears_of_it() -> None:
    gpus = FakeGpus()
    memory = memory_of(os.O_RDWR, writable=True)
    assert Registrar(gpus, read_only=False).register(memory, GPU) is not None
    assert len(gpus.registered) == 1
    del memory
    assert gpus.registered == {}, "the stand-in looks whether it is mapped"


def test_cards_that_register_nothing_for_reading_only_get_it_writable_for_as_long_as_that_takes(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    registrar = Registrar(Cuda(), read_only=True)
    memory, other = (memory_of(os.O_RDWR, writable=False) for _ in range(2))
    at, then = ctypes.addressof(memory), ctypes.addressof(other)
    assert registrar.register(memory, GPU) is not None
    assert runtime.calls == [
        ("cudaHostRegister", at, 8192, 9),
        ("cudaGetLastError",),
        ("cudaHostRegister", at, 8192, 1),
    ]
    assert registrar.register(other, GPU) is not None
    assert runtime.calls[3:] == [("cudaHostRegister", then, 8192, 1)], "what was refused is not tried again"
    assert caplog.messages == []


def test_memory_that_cannot_be_made_writable_either_is_not_registered_and_one_warning_says_so(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    registrar = Registrar(Cuda(), read_only=True)
    memory = memory_of(os.O_RDONLY, writable=False)
    assert registrar.register(memory, GPU) is registrar.register(memory, GPU) is None
    assert [call[0] for call in runtime.calls] == ["cudaHostRegister", "cudaGetLastError"]
    assert len(caplog.messages) == 1
    assert "the protection of 8192 bytes cannot be changed" in caplog.text


class Discrete(FakeGpus):
    """A card that registers nothing for reading only."""

    def register(self, address: int, nbytes: int, device: torch.device, *, read_only: bool) -> None:
        if read_only:
            raise RuntimeError("cudaHostRegister failed with code 801")
        assert "w" in protection_at(address)
        super().register(address, nbytes, device, read_only=False)


def protection_at(address: int) -> str:
    """As ``r--s``: of the mapping that begins there or around it."""
    with open("/proc/self/maps") as file:
        lines = [line.split(maxsplit=2) for line in file]
    ranges = [(*(int(end, 16) for end in place.split("-")), access) for place, access, _ in lines]
    return next(access for begin, end, access in ranges if begin <= address < end)


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_receivers_on_a_card_that_registers_nothing_for_reading_only_are_registered_and_stay_protected(
    apply: str, caplog: pytest.LogCaptureFixture
) -> None:
    gpus = Discrete()
    source, destination = weights(0), gpus.put(weights(0))
    async with pair(source, destination, gpus=gpus, apply=apply) as (publisher, _):
        for version in range(1, 6):
            source["b"].fill_(version)
            await (await publisher.publish(source))
            assert float(destination["b"].min()) == version
        assert len(gpus.registered) == publisher._slots
        assert {protection_at(address) for address in gpus.registered} == {"r--s"}
    told = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert [text for text in told if "full speed" in text] == []
    assert gpus.registered == {}


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_nothing_is_mapped_or_unmapped_where_a_loop_runs(apply: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, list[int]] = {"mapped": [], "unmapped": []}
    unmap = mapping._unmap

    def map_and_note(*arguments: Any, **options: Any) -> Any:
        threads["mapped"].append(threading.get_ident())
        return map_memory(*arguments, **options)

    def unmap_and_note(address: int, size: int) -> None:
        threads["unmapped"].append(threading.get_ident())
        unmap(address, size)

    monkeypatch.setattr(slot, "map_memory", map_and_note)
    monkeypatch.setattr(mapping, "_unmap", unmap_and_note)
    source, destination = {"w": torch.zeros(1 << 20)}, {"w": torch.zeros(1 << 20)}
    async with pair(source, destination, apply=apply) as (publisher, _):
        for version in range(1, 6):
            source["w"].fill_(version)
            await (await publisher.publish(source))
            assert float(destination["w"][-1]) == version
    assert len(threads["mapped"]) == len(threads["unmapped"]) >= 4
    assert threading.get_ident() not in {*threads["mapped"], *threads["unmapped"]}
