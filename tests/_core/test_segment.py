"""Sealed memory segments: complete, private to the reader, safe from truncation."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from rlinf_async._core import codec
from rlinf_async._core.segment import map_private, write_segment
from rlinf_async.errors import SerializationError


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def no_file_stays_open() -> Iterator[None]:
    before = open_files()
    yield
    assert open_files() == before


def read(parts: list[bytes], nbytes: int | None = None) -> bytes:
    size = sum(map(len, parts)) if nbytes is None else nbytes
    fd = write_segment(parts, size)
    try:
        return bytes(map_private(fd, size))
    finally:
        os.close(fd)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=3000))
def test_any_number_of_parts_is_one_contiguous_segment(parts: list[bytes]) -> None:
    assert read(parts) == b"".join(parts)


def test_more_parts_than_one_system_call_takes() -> None:
    parts = [bytes([index % 256]) * 3 for index in range(5000)]
    assert read(parts) == b"".join(parts)


def test_short_writes_are_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, offset: real(fd, [parts[0][:7]], offset))
    parts = [b"abc", b"", b"defghijklmnopqrstuvw", b"x" * 100]
    assert read(parts) == b"".join(parts)


def test_a_value_travels_through_a_segment_and_is_a_view_of_it() -> None:
    encoded = codec.encode({"obs": np.arange(100_000)})
    fd = write_segment(encoded.parts(), encoded.nbytes)
    before = open_files()
    value = codec.decode(map_private(fd, encoded.nbytes))
    os.close(fd)
    assert open_files() == before, "the mapping holds a duplicate of the descriptor instead"
    assert value["obs"].tolist() == list(range(100_000))
    value["obs"][0] = 7
    del value


def test_what_a_reader_changes_nobody_else_sees() -> None:
    fd = write_segment([b"original"], 8)
    one, two = map_private(fd, 8), map_private(fd, 8)
    one[:] = b"modified"
    assert bytes(two) == b"original" == os.pread(fd, 8, 0)
    os.close(fd)


def test_a_peer_can_neither_shrink_nor_grow_a_segment() -> None:
    fd = write_segment([b"12345678"], 8)
    for size in (0, 4096):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_an_empty_segment_is_an_empty_view() -> None:
    assert read([]) == b""
    assert read([b"", b""]) == b""


@pytest.mark.parametrize("size", [9, 1 << 40, -1])
def test_a_lie_about_the_size_is_an_error(size: int) -> None:
    fd = write_segment([b"12345678"], 8)
    with pytest.raises(SerializationError, match=rf"said to have {size} bytes and has 8"):
        map_private(fd, size)
    assert bytes(map_private(fd, 4)) == b"1234"
    os.close(fd)


def unsealed(_: Path) -> int:
    fd = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, b"12345678")
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return fd


def plain_file(tmp_path: Path) -> int:
    (tmp_path / "file").write_bytes(b"12345678")
    return os.open(tmp_path / "file", os.O_RDWR)


@pytest.mark.parametrize("make", [unsealed, plain_file])
def test_memory_that_its_owner_could_shrink_is_not_mapped(tmp_path: Path, make: Callable[[Path], int]) -> None:
    fd = make(tmp_path)
    with pytest.raises(SerializationError, match="not memory that is sealed against shrinking"):
        map_private(fd, 8)
    os.close(fd)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM])
def test_no_memory_is_a_memory_error_that_says_how_much(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwritev", refuse)
    with pytest.raises(MemoryError, match=r"no memory for a segment of 3\.0 MiB .*container"):
        write_segment([bytes(3 << 20)], 3 << 20)


def test_no_descriptor_left_is_an_error_that_names_the_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match="this process may open 3 files") as caught:
            write_segment([b"x"], 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.errno == errno.EMFILE


def test_parts_of_another_size_than_announced_are_refused() -> None:
    with pytest.raises(ValueError, match="a segment of 9 bytes have 8"):
        write_segment([b"12345678"], 9)
