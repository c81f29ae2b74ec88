"""Copies between GPU and registered shared memory, with a stand-in for CUDA."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import threading
from typing import Any

import pytest
import torch

from rlinf_async._transports import device_memory
from rlinf_async.weights.memory import cuda
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
            await (await publisher.publish(source, keys=["a"]))
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


def test_cuda_is_told_how_memory_is_mapped_and_its_refusal_leaves_no_error_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = Runtime()
    monkeypatch.setattr(cuda, "cuda_runtime", lambda: runtime)
    monkeypatch.setattr(device_memory, "cuda_runtime", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    registration = Registrar(Cuda(), read_only=False).register(4096, 8192, GPU)
    assert registration is not None
    registration.end()
    assert runtime.calls == [("cudaHostRegister", 4096, 8192, 1), ("cudaHostUnregister", 4096)]
    runtime.calls.clear()
    registrar = Registrar(Cuda(), read_only=True)
    assert registrar.register(4096, 8192, GPU) is registrar.register(4096, 8192, GPU) is None
    assert runtime.calls == [("cudaHostRegister", 4096, 8192, 9), ("cudaGetLastError",)]
    assert "cudaHostRegister failed with code 801" in caplog.text
