"""A slot's memory between its writer and its readers."""

from __future__ import annotations

import fcntl
import os
import warnings

import pytest
import torch

from rlinf_async.errors import TransferFailed
from rlinf_async.weights.memory import slot
from rlinf_async.weights.memory.slot import MemoryName, SlotWriter, checksum_of
from rlinf_async.weights.memory.slot_layout import ON_GPU, SlotLayout
from rlinf_async.weights.memory.slot_reader import SlotReader

LAYOUT = SlotLayout(1000)
DIGEST = b"digest"


def write(writer: SlotWriter, version: int, extra: bytes = b"") -> None:
    assert writer.claim()
    writer.begin()
    writer.leaves.fill_(version)
    writer.finish(version, extra, checksum_of(writer.leaves, extra))
    writer.give_back()


def test_a_version_is_read_as_it_was_written_and_kept_from_being_overwritten_until_it_is_released() -> None:
    writer = SlotWriter(LAYOUT, DIGEST)
    one, other = SlotReader(writer.name, LAYOUT), SlotReader(writer.name, LAYOUT)
    assert one.lease() is None, "nothing is in it"
    write(writer, 7, b"extra")
    header = one.lease()
    assert header is not None
    assert (header.version, header.digest.rstrip(b"\0"), one.extra(header)) == (7, DIGEST, b"extra")
    one.check(header)
    assert one.leaves.tolist() == [7] * 1000
    assert other.lease() is not None
    one.release()
    assert not writer.claim()
    other.release()
    assert writer.claim()
    assert one.lease() is None, "it is being written"
    for each in (one, other, writer):
        each.close()
        each.close()


@pytest.mark.parametrize("child", ["goes on", "closes"])
def test_what_a_forked_process_looks_at_stays_and_its_parent_keeps_what_it_has(child: str) -> None:
    writer = SlotWriter(LAYOUT, DIGEST)
    write(writer, 7)
    reader = SlotReader(writer.name, LAYOUT)
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
        assert not writer.claim()  # the parent reads
    else:
        reader.release()
        assert not writer.claim()  # the child reads
    os.close(ends)
    os.waitpid(pid, 0)
    reader.release()
    assert writer.claim()
    for fd in (done, is_done, end):
        os.close(fd)
    reader.close()
    writer.close()


def test_what_is_half_written_is_no_version_even_if_nobody_holds_it() -> None:
    writer = SlotWriter(LAYOUT, DIGEST)
    write(writer, 1)
    reader = SlotReader(writer.name, LAYOUT)
    writer.claim()
    writer.begin()
    writer.give_back()  # as if the writer had died
    assert reader.lease() is None
    assert writer.claim(), "and there is no lease"
    writer.close()
    reader.close()


def test_a_changed_byte_is_found_by_its_checksum() -> None:
    writer = SlotWriter(LAYOUT, DIGEST)
    write(writer, 1)
    reader = SlotReader(writer.name, LAYOUT)
    header = reader.lease()
    assert header is not None
    writer.leaves[500] = 2
    with pytest.raises(TransferFailed, match="version 1 was written with checksum"):
        reader.check(header)
    writer.close()
    reader.close()


def taken(writer: SlotWriter) -> int:
    """Bytes of memory."""
    return os.stat(writer.name.path).st_blocks * 512


def test_the_memory_is_sealed_and_that_of_the_leaves_is_taken_as_a_whole_by_the_first_that_asks_for_them() -> None:
    layout = SlotLayout(3 << 20)
    writer = SlotWriter(layout, DIGEST)
    with open(writer.name.path, "rb") as memory:
        assert fcntl.fcntl(memory, fcntl.F_GET_SEALS) == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        assert os.fstat(memory.fileno()).st_size == writer.name.size == 6 << 20
    assert writer.claim()
    writer.begin()
    writer.finish(1, b"x" * layout.extra_room, places=ON_GPU)
    writer.give_back()
    reader = SlotReader(writer.name, layout)
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
    writer = SlotWriter(layout, DIGEST, "large")
    monkeypatch.setattr(slot, "available", lambda: 20 << 20)
    with pytest.raises(MemoryError, match="'large' take one slot of 32 MiB, and 20 MiB of memory are available"):
        _ = writer.leaves
    assert taken(writer) < 20 << 20
    monkeypatch.undo()
    assert writer.leaves.nbytes == 30 << 20
    writer.close()


def test_readers_go_on_when_the_writer_has_closed_it() -> None:
    writer = SlotWriter(LAYOUT, DIGEST)
    write(writer, 3)
    reader = SlotReader(writer.name, LAYOUT)
    name = writer.name
    writer.close()
    assert reader.lease() is not None
    assert reader.leaves.sum() == 3000
    kept = reader.leaves
    reader.close()
    assert kept.sum() == 3000, "a tensor keeps the memory that it stands in"
    with pytest.raises(TransferFailed, match="cannot be opened"):
        SlotReader(name, LAYOUT)
    assert writer.leaves.nbytes == 0


def test_a_descriptor_that_means_something_else_by_now_is_not_taken_for_the_slot() -> None:
    writer = SlotWriter(LAYOUT, DIGEST)
    for wrong in (writer.name._replace(inode=1), writer.name._replace(size=4096)):
        with pytest.raises(TransferFailed, match="not the memory that its sender has announced"):
            SlotReader(wrong, LAYOUT)
    with pytest.raises(TransferFailed, match="not the memory"):
        SlotReader(writer.name, SlotLayout(5 << 20))
    with pytest.raises(TransferFailed, match="cannot be opened"):
        SlotReader(MemoryName("/proc/self/fd/1000000", 1, 1), LAYOUT)
    writer.close()


def test_what_stands_beside_the_tensors_may_grow_to_what_there_is_room_for() -> None:
    writer = SlotWriter(LAYOUT, DIGEST)
    write(writer, 1, b"x" * LAYOUT.extra_room)
    writer.claim()
    with pytest.raises(ValueError, match="has grown to"):
        writer.finish(2, b"x" * (LAYOUT.extra_room + 1))
    writer.close()


def test_a_slot_without_any_leaf_is_possible() -> None:
    layout = SlotLayout(0)
    writer = SlotWriter(layout, DIGEST)
    write(writer, 1)
    reader = SlotReader(writer.name, layout)
    assert reader.lease() is not None
    assert torch.equal(reader.leaves, torch.empty(0, dtype=torch.uint8))
    writer.close()
    reader.close()
