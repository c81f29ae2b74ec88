"""A slot's memory between its writer and its readers."""

from __future__ import annotations

import fcntl
import os
import warnings

import pytest
import torch
from hypothesis import given, strategies as st

from rlinf_async.errors import TransferFailed
from rlinf_async.weights import Manifest, ParamTree
from rlinf_async.weights.memory import slot
from rlinf_async.weights.memory.slot import (
    HEADER_BYTES,
    ON_GPU,
    MemoryName,
    SlotHeader,
    SlotLayout,
    SlotWriter,
)
from rlinf_async.weights.memory.slot_reader import SlotReader

EXTRA_ROOM = SlotLayout(0).extra_room


def manifest_of(nbytes: int) -> Manifest:
    return Manifest.of(ParamTree.of({"w": torch.empty(nbytes, dtype=torch.uint8)}))


def slot_of(nbytes: int, label: str = "weights") -> SlotWriter:
    return SlotWriter(manifest_of(nbytes), SlotLayout(nbytes), label)


def reader_of(writer: SlotWriter, name: MemoryName | None = None) -> SlotReader:
    return SlotReader(writer.name if name is None else name, writer._manifest, writer._layout)


def write(writer: SlotWriter, version: int, extra: bytes = b"") -> None:
    assert writer.lock()
    writer.begin()
    writer.leaves.fill_(version)
    writer.finish(version, extra)
    writer.unlock()


def test_a_version_is_read_as_it_was_written_and_kept_from_being_overwritten_until_it_is_released() -> None:
    writer = slot_of(1024)
    one, other = reader_of(writer), reader_of(writer)
    assert one.lease() is None, "nothing is in it"
    write(writer, 7, b"extra")
    header = one.lease()
    assert header is not None
    assert (header.version, header.digest[:16], one.extra(header)) == (7, writer._manifest.digest, b"extra")
    assert one.leaves.tolist() == [7] * 1024
    assert other.lease() is not None
    one.release()
    assert not writer.lock()
    other.release()
    assert writer.lock()
    assert one.lease() is None, "it is being written"
    for each in (one, other, writer):
        each.close()
        each.close()


@pytest.mark.parametrize("child", ["goes on", "closes"])
def test_what_a_forked_process_looks_at_stays_and_its_parent_keeps_what_it_has(child: str) -> None:
    writer = slot_of(1024)
    write(writer, 7)
    reader = reader_of(writer)
    assert reader.lease() is not None
    (done, is_done), (end, ends) = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        pid = os.fork()
    if pid == 0:
        try:
            if child == "closes":
                reader.close()
            os.write(is_done, b".")
            os.close(ends)
            os.read(end, 1)
        finally:
            os._exit(0)
    assert os.read(done, 1) == b"."
    if child == "closes":
        assert not writer.lock()  # the parent reads
    else:
        reader.release()
        assert not writer.lock()  # the child reads
    os.close(ends)
    os.waitpid(pid, 0)
    reader.release()
    assert writer.lock()
    for fd in (done, is_done, end):
        os.close(fd)
    reader.close()
    writer.close()


def test_what_is_half_written_is_no_version_even_if_nobody_holds_it() -> None:
    writer = slot_of(1024)
    write(writer, 1)
    reader = reader_of(writer)
    writer.lock()
    writer.begin()
    writer.unlock()  # as if the writer had died
    assert reader.lease() is None
    assert writer.lock(), "and there is no lease"
    writer.close()
    reader.close()


def taken(writer: SlotWriter) -> int:
    """Bytes of memory."""
    return os.stat(writer.name.path).st_blocks * 512


def test_the_memory_is_sealed_and_that_of_the_leaves_is_taken_as_a_whole_by_the_first_that_asks_for_them() -> None:
    layout = SlotLayout(3 << 20)
    writer = slot_of(layout.leaves)
    with open(writer.name.path, "rb") as memory:
        assert fcntl.fcntl(memory, fcntl.F_GET_SEALS) == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        assert os.fstat(memory.fileno()).st_size == writer.name.size == 6 << 20
    assert writer.lock()
    writer.begin()
    writer.finish(1, b"x" * layout.extra_room, places=ON_GPU)
    writer.unlock()
    reader = reader_of(writer)
    header = reader.lease()
    assert header is not None
    assert len(reader.extra(header)) == layout.extra_room
    assert taken(writer) < 3 << 20
    assert writer.leaves.nbytes == 3 << 20
    assert taken(writer) >= 3 << 20
    writer.leaves.fill_(7)
    assert (int(reader.leaves.min()), int(reader.leaves.max())) == (7, 7)
    reader.close()
    writer.close()


def test_leaves_for_which_there_is_no_memory_are_an_error_and_none_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = SlotLayout(30 << 20)
    writer = slot_of(layout.leaves, "large")
    monkeypatch.setattr(slot, "available", lambda: 20 << 20)
    with pytest.raises(MemoryError, match="'large' take one slot of 32 MiB, and 20 MiB of memory are available"):
        _ = writer.leaves
    assert taken(writer) < 20 << 20
    monkeypatch.undo()
    assert writer.leaves.nbytes == 30 << 20
    writer.close()


def test_readers_go_on_when_the_writer_has_closed_it() -> None:
    writer = slot_of(1024)
    write(writer, 3)
    reader = reader_of(writer)
    name = writer.name
    writer.close()
    assert reader.lease() is not None
    assert reader.leaves.sum() == 3 * 1024
    kept = reader.leaves
    reader.close()
    assert kept.sum() == 3 * 1024, "a tensor keeps the memory that it stands in"
    with pytest.raises(TransferFailed, match="cannot be opened"):
        reader_of(writer, name)
    assert writer.leaves.nbytes == 0


def test_a_descriptor_that_means_something_else_by_now_is_not_taken_for_the_slot() -> None:
    writer = slot_of(1024)
    for wrong in (writer.name._replace(inode=1), writer.name._replace(size=4096)):
        with pytest.raises(TransferFailed, match="not the memory that its sender has announced"):
            reader_of(writer, wrong)
    with pytest.raises(TransferFailed, match="not the memory"):
        SlotReader(writer.name, writer._manifest, SlotLayout(5 << 20))
    with pytest.raises(TransferFailed, match="cannot be opened"):
        reader_of(writer, MemoryName("/proc/self/fd/1000000", 1, 1))
    writer.close()


def test_what_stands_beside_the_tensors_may_grow_to_what_there_is_room_for() -> None:
    writer = slot_of(1024)
    write(writer, 1, b"x" * EXTRA_ROOM)
    writer.lock()
    with pytest.raises(ValueError, match="has grown to"):
        writer.finish(2, b"x" * (EXTRA_ROOM + 1))
    writer.close()


def test_a_slot_without_any_leaf_is_possible() -> None:
    writer = slot_of(0)
    write(writer, 1)
    reader = reader_of(writer)
    assert reader.lease() is not None
    assert torch.equal(reader.leaves, torch.empty(0, dtype=torch.uint8))
    writer.close()
    reader.close()


@given(st.binary(min_size=1, max_size=32), *[st.integers(0, 2**64 - 1)] * 3)
def test_a_header_comes_back_as_it_was(digest: bytes, sequence: int, version: int, extra: int) -> None:
    header = SlotHeader(digest, sequence, version, extra)
    packed = header.pack()
    assert SlotHeader.unpack(packed) == header._replace(digest=digest.ljust(32, b"\0"))
    assert len(packed) <= HEADER_BYTES


def test_memory_that_is_no_slot_is_refused() -> None:
    with pytest.raises(ValueError, match="no slot of weights"):
        SlotHeader.unpack(bytes(HEADER_BYTES))


def test_a_slot_is_whole_only_between_writings() -> None:
    assert [SlotHeader(b"", sequence).is_whole for sequence in range(5)] == [False, False, True, False, True]


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 30))
def test_nothing_in_a_slot_overlaps(leaves: int, extra: int) -> None:
    layout = SlotLayout(leaves, extra)
    assert layout.head == HEADER_BYTES + layout.extra_room
    assert layout.extra_room >= max(4096, 4 * extra)
    assert layout.leaves_offset >= layout.head
    assert layout.leaves_offset % (2 << 20) == layout.size % (2 << 20) == 0
    assert layout.size >= layout.leaves_offset + leaves
