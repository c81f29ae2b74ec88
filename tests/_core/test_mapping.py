"""Mapped memory: content, lifetime, protection, blocking."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
import weakref
from typing import Any

import pytest

from rlinf_async._core.mapping import map_memory, protect
from rlinf_async._core.segment import allocate_segment

SIZE = 256 << 20


def is_mapped(name: str) -> bool:
    with open("/proc/self/maps") as maps:
        return any(f"memfd:{name} " in line for line in maps)


def mapped(size: int = 4096, offset: int = 0, *, writable: bool) -> Any:
    fd = allocate_segment(offset + size, "test-mapping")
    try:
        return map_memory(fd, size, offset, writable=writable)
    finally:
        os.close(fd)


def ending_of_a_write_to(memory: Any) -> int:
    """Exit code of a forked process that writes to it."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        memoryview(memory).cast("B")[0] = 1
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_memory_is_shared_and_unmapped_with_the_last_view_of_it() -> None:
    fd = allocate_segment(3 * 4096, "test-mapping")
    written, read = map_memory(fd, 4096, 8192, writable=True), map_memory(fd, 4096, 8192, writable=False)
    memoryview(written).cast("B")[:5] = b"hello"
    assert os.pread(fd, 5, 8192) == b"hello"
    os.close(fd)
    view = memoryview(read).cast("B")[:5]
    del written, read
    assert bytes(view) == b"hello"
    assert is_mapped("test-mapping")
    del view
    assert not is_mapped("test-mapping")


def test_finalizers_of_memory_are_called_before_it_is_unmapped() -> None:
    told: list[bool] = []
    memory = mapped(writable=True)
    weakref.finalize(memory, lambda: told.append(is_mapped("test-mapping")))
    view = memoryview(memory)
    del memory
    assert told == []
    del view
    assert told == [True]
    assert not is_mapped("test-mapping")


def test_to_write_to_memory_that_is_for_reading_is_a_fault_also_once_it_is_protected_again() -> None:
    memory = mapped(writable=False)
    assert ending_of_a_write_to(memory) == -signal.SIGSEGV
    protect(memory, writable=True)
    assert ending_of_a_write_to(memory) == 0
    protect(memory, writable=False)
    assert ending_of_a_write_to(memory) == -signal.SIGSEGV


def test_what_cannot_be_mapped_or_made_writable_is_an_error() -> None:
    with pytest.raises(OSError, match="4096 bytes cannot be mapped: Bad file descriptor"):
        map_memory(-1, 4096, writable=False)
    with open("/proc/self/exe", "rb") as file:
        memory = map_memory(file.fileno(), 4096, writable=False)
    with pytest.raises(PermissionError, match="the protection of 4096 bytes cannot be changed"):
        protect(memory, writable=True)


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
