"""Slots and their content, as plain state."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from rlinf_async.weights.memory.slot_book import SlotBook
from rlinf_async.weights.memory.slot_layout import HEADER_BYTES, SlotHeader, SlotLayout


@given(st.binary(min_size=1, max_size=32), *[st.integers(0, 2**64 - 1)] * 3, st.integers(0, 2**32 - 1))
def test_a_header_comes_back_as_it_was(digest: bytes, sequence: int, version: int, extra: int, checksum: int) -> None:
    header = SlotHeader(digest, sequence, version, extra, checksum)
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


def test_one_slot_is_too_few() -> None:
    with pytest.raises(ValueError, match="2 or more"):
        SlotBook(1, 1)


def test_the_first_version_must_be_complete() -> None:
    with pytest.raises(ValueError, match="every leaf"):
        SlotBook(2, 2).missing(0, [1])


def test_the_latest_version_cannot_be_written_to() -> None:
    book = SlotBook(2, 1)
    book.begin(0)
    book.finish(0, 1, None)
    with pytest.raises(ValueError, match="latest"):
        book.begin(0)


@given(st.data(), st.integers(2, 4), st.integers(1, 5))
def test_every_version_is_complete_whatever_was_given(data: st.DataObject, slots: int, leaves: int) -> None:
    """A model of the memory: what ``missing`` names is copied, and the slot then equals the true state."""
    book = SlotBook(slots, leaves)
    memory: list[list[object]] = [[None] * leaves for _ in range(slots)]
    truth: list[object] = [None] * leaves
    for version in range(1, 8):
        slot = data.draw(st.sampled_from(book.candidates()))
        if data.draw(st.booleans()):
            book.replace(slot)
            memory[slot] = ["new memory"] * leaves
        given = None if version == 1 else data.draw(st.sets(st.integers(0, leaves - 1)))
        missing = book.missing(slot, given)
        latest = book.latest
        book.begin(slot)
        fails = version > 1 and data.draw(st.booleans())
        if fails:  # half written
            memory[slot][0] = "torn"
            assert book.latest == latest
            continue
        for leaf in missing:
            assert latest is not None
            memory[slot][leaf] = memory[latest][leaf]
        before = truth.copy()
        for leaf in range(leaves) if given is None else given:
            memory[slot][leaf] = truth[leaf] = (version, leaf)
        book.finish(slot, version, given)
        assert memory[slot] == truth
        assert book.latest == slot
        assert slot not in book.candidates()
        if version > 1 and data.draw(st.booleans()):  # it is not published
            book.withdraw(latest)
            truth = before
            assert book.latest == latest
            assert slot in book.candidates()


def test_what_a_slot_has_already_is_not_copied_again() -> None:
    book = SlotBook(2, 3)
    for slot, version in ((0, 1), (1, 2)):
        book.begin(slot)
        book.finish(slot, version, None if version == 1 else [2])
    # Slot 0 has leaf 0 and 1 of version 1, which are still the latest; leaf 2 changed in version 2.
    assert book.missing(0, [0]) == [2]
    assert book.candidates() == [0]
