"""Shared memory of messages: budget, and lifetime of received memory."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from rlinf_async._core.pool import pool
from rlinf_async._core.segment import write_segment
from rlinf_async._transports import shared_memory, transport_choice
from rlinf_async.errors import SerializationError

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> Iterator[None]:
    caches = (shared_memory.budget, shared_memory._warn, shared_memory._control_groups)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()
    pool.close()


def machine(monkeypatch: pytest.MonkeyPatch, used: int, available: int = 100 * GIB) -> None:
    facts = {"MemTotal": 100 * GIB, "MemAvailable": available, "Shmem": used}
    monkeypatch.setattr(shared_memory, "_machine", lambda: facts)
    monkeypatch.setattr(shared_memory, "_control_groups", lambda: ())


@pytest.mark.parametrize(
    ("text", "size"),
    [("12345", 12345), ("0", 0), ("4K", 4096), ("3m", 3 << 20), (" 2G ", 2 * GIB), ("2GiB", 2 * GIB), ("1T", 1 << 40)],
)
def test_the_budget_is_what_the_variable_says(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setenv(shared_memory.BUDGET, text)
    assert shared_memory.budget() == size


@pytest.mark.parametrize("text", ["", "much", "-1", "1.5G", "G"])
def test_a_budget_that_is_no_size_is_an_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(shared_memory.BUDGET, text)
    with pytest.raises(ValueError, match=r"RLINF_SHM_BUDGET=.* is no size"):
        shared_memory.budget()


def test_the_budget_is_half_of_the_machines_memory_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(shared_memory.BUDGET, raising=False)
    machine(monkeypatch, 0)
    assert shared_memory.budget() == 50 * GIB


def test_a_container_with_a_limit_counts_instead_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(shared_memory.BUDGET, raising=False)
    machine(monkeypatch, 30 * GIB)
    (tmp_path / "memory.max").write_text(f"{8 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{5 * GIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 7\ninactive_file {GIB}\nshmem {2 * GIB}\n")
    monkeypatch.setattr(shared_memory, "_control_groups", lambda: (tmp_path,))
    assert shared_memory.budget() == 4 * GIB
    assert shared_memory._usage() == (2 * GIB, 4 * GIB, 8 * GIB)
    assert shared_memory.fits(2 * GIB)
    assert not shared_memory.fits(2 * GIB + 1)


def test_over_the_budget_messages_go_another_way_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(shared_memory.BUDGET, "10G")
    machine(monkeypatch, 9 * GIB)
    assert transport_choice.choose(GIB, same_node=True, direct=False) == transport_choice.IN_FRAME
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert transport_choice.choose(GIB + 1, same_node=True, direct=False) == transport_choice.PIECES
    assert len(caplog.messages) == 1
    assert "messages take a slower way for want of shared memory: 9.0 GiB are in use" in caplog.text


def test_what_the_machine_has_not_is_not_shared_whatever_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shared_memory.BUDGET, "90G")
    machine(monkeypatch, 0, available=10 * GIB)
    assert shared_memory.fits(6 * GIB)
    assert not shared_memory.fits(8 * GIB)


def test_warm_memory_takes_no_more_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shared_memory.BUDGET, "0")
    size = 2 << 20
    assert not shared_memory.fits(size)
    os.close(pool.write([bytes(size)], size))
    assert shared_memory.fits(size)
    held = pool.write([bytes(size)], size)
    assert not shared_memory.fits(size)
    os.close(held)


@pytest.mark.parametrize("size", [1, 40_000, 300_000, 3_000_000])
def test_a_segment_is_opened_as_memory_of_its_receivers_own(size: int) -> None:
    fd = write_segment([b"x" * size], size)
    segment = shared_memory.SharedSegment(os.dup(fd), size)
    memory = segment.open()
    memory[0] = 7
    target = memoryview(bytearray(size))
    segment.read_into(target)
    assert (bytes(target[:1]), len(memory), bytes(memory[:1])) == (b"x", size, b"\7")
    segment.close()
    segment.close()
    assert bytes(memory[-1:]) in (b"x", b"\7")
    os.close(fd)


def test_a_segment_that_is_forgotten_is_closed() -> None:
    fd = write_segment([b"x" * 10], 10)
    segment = shared_memory.SharedSegment(fd, 10)
    del segment
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_segment_that_is_smaller_than_was_said_is_an_error_not_a_hang() -> None:
    segment = shared_memory.SharedSegment(write_segment([b"x" * 10], 10), 20)
    with pytest.raises(SerializationError, match="was said to have 20 bytes and has 10"):
        segment.open()
    segment.close()


def test_where_no_file_can_be_opened_the_segment_itself_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_machine", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
    assert shared_memory.fits(1 << 30)
