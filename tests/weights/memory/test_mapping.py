"""Mapped memory: content, lifetime, blocking."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import sys
import threading
import time
from typing import Any

import pytest
import torch

from rlinf_async._core.segment import allocate_segment
from rlinf_async.weights.memory import mapping, slot
from rlinf_async.weights.memory.gpus import Registrar
from rlinf_async.weights.memory.mapping import map_memory, register, registration_of
from tests._support.fake_gpus import GPU, FakeGpus
from tests.weights.pairs import pair

SIZE = 256 << 20


def is_mapped(name: str) -> bool:
    with open("/proc/self/maps") as maps:
        return any(f"memfd:{name} " in line for line in maps)


def test_memory_is_shared_and_unmapped_with_the_last_tensor_that_stands_in_it() -> None:
    fd = allocate_segment(4096, "test-mapping")
    written, read = map_memory(fd, 4096, writable=True), map_memory(fd, 4096, writable=False)
    os.close(fd)
    memoryview(written).cast("B")[:5] = b"hello"
    tensor = torch.frombuffer(read, dtype=torch.uint8, count=5)
    del written, read
    assert bytes(tensor.tolist()) == b"hello"
    assert is_mapped("test-mapping")
    del tensor
    assert not is_mapped("test-mapping")


@pytest.mark.parametrize("ends", [True, False])
def test_cuda_hears_once_that_memory_goes_before_it_is_unmapped_whoever_lets_go_of_it_last(
    ends: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gpus = FakeGpus()
    fd = allocate_segment(4096, "test-mapping")
    memory = map_memory(fd, 4096, writable=True)
    os.close(fd)
    for _ in range(2):
        register(memory, Registrar(gpus, read_only=False), GPU)
    assert len(gpus.done("register")) == 1
    tensor = torch.frombuffer(memory, dtype=torch.uint8, count=5)
    registration = registration_of(memory)
    assert registration is not None
    if ends:
        registration.end()
        assert gpus.registered == {}
    del memory
    assert len(gpus.registered) == (0 if ends else 1)
    del tensor
    assert gpus.registered == {}, "it was mapped then: the stand-in looks"
    assert not is_mapped("test-mapping")
    assert caplog.messages == [], "by then something else may be registered at that address"


def test_to_write_to_memory_that_is_for_reading_is_a_fault() -> None:
    fd = allocate_segment(4096, "test-mapping")
    memory = map_memory(fd, 4096, writable=False)
    os.close(fd)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        memoryview(memory).cast("B")[0] = 1
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGSEGV


def test_what_cannot_be_mapped_is_an_error() -> None:
    with pytest.raises(OSError, match="4096 bytes cannot be mapped: Bad file descriptor"):
        map_memory(-1, 4096, writable=False)


def longest_wait(fd: int) -> float:
    """For how much of the time that mapping takes another thread, which always has something to do, does nothing."""
    turns: list[float] = []
    is_over = threading.Event()

    def take_turns() -> None:
        while not is_over.is_set():
            turns.append(time.perf_counter())

    other = threading.Thread(target=take_turns)
    other.start()
    begun = time.perf_counter()
    memory = map_memory(fd, SIZE, writable=True)
    ended = time.perf_counter()
    is_over.set()
    other.join()
    del memory
    moments = [begun, *(turn for turn in turns if begun < turn < ended), ended]
    return max(after - before for before, after in itertools.pairwise(moments)) / (ended - begun)


def test_other_threads_go_on_while_memory_is_mapped() -> None:
    fd = allocate_segment(SIZE, "test-mapping")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # otherwise they wait for each other besides
    try:
        assert any(longest_wait(fd) < 0.5 for _ in range(50)), "whenever it was tried, it stood still meanwhile"
    finally:
        sys.setswitchinterval(interval)
        os.close(fd)


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_nothing_is_mapped_or_unmapped_where_a_loop_runs(apply: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, list[int]] = {"mapped": [], "unmapped": []}
    unmap: Any = mapping._Mapping.__del__

    def map_and_note(*arguments: Any, **options: Any) -> Any:
        threads["mapped"].append(threading.get_ident())
        return map_memory(*arguments, **options)

    def unmap_and_note(self: Any) -> None:
        threads["unmapped"].append(threading.get_ident())
        unmap(self)

    monkeypatch.setattr(slot, "map_memory", map_and_note)
    monkeypatch.setattr(mapping._Mapping, "__del__", unmap_and_note)
    source, destination = {"w": torch.zeros(1 << 20)}, {"w": torch.zeros(1 << 20)}
    async with pair(source, destination, apply=apply) as (publisher, _):
        for version in range(1, 6):
            source["w"].fill_(version)
            await (await publisher.publish(source))
            assert float(destination["w"][-1]) == version
    assert len(threads["mapped"]) == len(threads["unmapped"]) >= 4
    assert threading.get_ident() not in {*threads["mapped"], *threads["unmapped"]}
