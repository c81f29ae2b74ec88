"""PooledSegment pool: reuse exactly of segments without other holders."""

from __future__ import annotations

import fcntl
import os
import socket
from collections import deque
from collections.abc import Iterator

import pytest

from rlinf_async._core.pool import Pool, PooledSegment
from rlinf_async._core.segment import map_private

SIZE = 100_000


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


def written(pool: Pool, byte: int, size: int = SIZE) -> int:
    return pool.write([bytes([byte]) * (size - 1), b"."], size)


def identity(fd: int) -> int:
    return os.fstat(fd).st_ino


def test_a_segment_that_nobody_holds_is_written_again(pool: Pool) -> None:
    first = written(pool, 1)
    before = identity(first)
    os.close(first)
    second = written(pool, 2)
    assert identity(second) == before
    assert bytes(map_private(second, SIZE)) == b"\2" * (SIZE - 1) + b"."
    os.close(second)


def test_a_piece_that_the_kernel_takes_in_parts_is_written_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    segment, write = PooledSegment(os.memfd_create("piece"), 8), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, piece, offset: write(fd, piece[:3], offset))
    segment.write_at(memoryview(b"abcdefgh"), 0)
    assert os.pread(segment.fd, 8, 0) == b"abcdefgh"
    segment.close()


def test_a_segment_with_an_open_descriptor_is_left_alone(pool: Pool) -> None:
    first = written(pool, 1)
    second = written(pool, 2)
    assert identity(first) != identity(second)
    assert os.pread(first, 4, 0) == b"\1\1\1\1"
    os.close(first)
    os.close(second)


def test_a_view_holds_its_segment_until_it_is_gone(pool: Pool) -> None:
    first = written(pool, 1)
    before = identity(first)
    view = map_private(first, SIZE)
    os.close(first)
    piece = view[10:20]
    del view
    second = written(pool, 2)
    assert identity(second) != before
    assert bytes(piece) == b"\1" * 10
    piece.release()
    del piece
    third = written(pool, 3)
    assert identity(third) == before
    os.close(second)
    os.close(third)


def test_a_descriptor_under_way_in_a_socket_holds_its_segment(pool: Pool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        first = written(pool, 1)
        before = identity(first)
        socket.send_fds(ours, [b"x"], [first])
        os.close(first)
        second = written(pool, 2)
        assert identity(second) != before
        _, (arrived,), _, _ = socket.recv_fds(theirs, 1, 1)
        assert os.pread(arrived, 2, 0) == b"\1\1"
        os.close(arrived)
        third = written(pool, 3)
        assert identity(third) == before
        os.close(second)
        os.close(third)


def test_a_forked_child_of_the_receiver_holds_its_segment(pool: Pool) -> None:
    first = written(pool, 1)
    before = identity(first)
    view = map_private(first, SIZE)
    os.close(first)
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        theirs.recv(1)
        os._exit(view[5])
    view.release()
    del view
    second = written(pool, 9)
    assert identity(second) != before
    ours.send(b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    third = written(pool, 3)
    assert identity(third) == before
    os.close(second)
    os.close(third)
    ours.close()
    theirs.close()


def test_a_forked_child_of_the_owner_never_writes_the_owners_segments(pool: Pool) -> None:
    first = written(pool, 1)
    before = identity(first)
    os.close(first)
    child = os.fork()
    if child == 0:
        os._exit(identity(written(pool, 2)) == before)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_receivers_can_neither_write_nor_resize_what_they_got(pool: Pool) -> None:
    fd = written(pool, 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(fd, b"x", 0)
    seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    assert seals & fcntl.F_SEAL_SHRINK
    assert seals & fcntl.F_SEAL_GROW
    view = map_private(fd, SIZE)
    view[0] = 7  # the receiver's own copy of the page
    assert os.pread(fd, 1, 0) == b"\1"
    os.close(fd)


def test_a_segment_that_could_not_be_filled_is_written_again(pool: Pool) -> None:
    first = written(pool, 1)
    before = identity(first)
    os.close(first)
    gone = memoryview(bytes(SIZE))
    gone.release()
    with pytest.raises(ValueError, match="released"):
        pool.write([gone], SIZE)
    second = written(pool, 2)
    assert identity(second) == before
    os.close(second)


def test_what_does_not_fit_is_not_kept() -> None:
    pool = Pool(keep=3 * SIZE)
    fds = [written(pool, value) for value in range(5)]
    assert repr(pool).startswith("<Pool 2 segments")
    assert [os.pread(fd, 1, 0) for fd in fds] == [bytes([value]) for value in range(5)]
    for fd in fds:
        os.close(fd)
    pool.close()


@pytest.mark.parametrize(("size", "is_taken"), [(19 * SIZE // 10, True), (25 * SIZE // 10, False)])
def test_no_message_takes_a_segment_of_more_than_twice_its_size(pool: Pool, size: int, is_taken: bool) -> None:
    first = written(pool, 1, size)
    large = identity(first)
    os.close(first)
    second = written(pool, 2)
    assert (identity(second) == large) == is_taken
    os.close(second)


def test_a_segment_that_is_written_again_holds_one_descriptor_and_is_unmapped_when_it_goes() -> None:
    def open_and_mapped() -> tuple[int, int]:
        links = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)]
        with open("/proc/self/maps") as maps:
            return sum("memfd:rlinf" in link for link in links), sum("memfd:rlinf" in line for line in maps)

    before = open_and_mapped()
    pool = Pool()
    for byte in (1, 2, 3):
        os.close(written(pool, byte))
    assert open_and_mapped() == (before[0] + 1, before[1] + 1)
    pool.close()
    assert open_and_mapped() == before


def test_parts_of_several_pieces_arrive_in_order(pool: Pool) -> None:
    for round_ in range(2):  # once with pwrite, once through the mapping
        parts = [os.urandom(3 << 20), b"", bytearray(b"abc"), memoryview(os.urandom(70_000))]
        size = sum(len(part) for part in parts)
        fd = pool.write(parts, size)
        assert bytes(map_private(fd, size)) == b"".join(parts), round_
        os.close(fd)


def test_with_many_messages_in_flight_few_segments_are_asked_and_the_warmest_is_written(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_flight = 24
    asked = 0

    def counted(segment: PooledSegment) -> bool:
        nonlocal asked
        asked += 1
        return is_free(segment)

    is_free = PooledSegment.is_free
    under_way = deque(written(pool, 0) for _ in range(2 * in_flight))  # as many segments are kept
    while len(under_way) > in_flight:
        os.close(under_way.popleft())
    monkeypatch.setattr(PooledSegment, "is_free", counted)
    used: list[int] = []
    for _ in range(200):
        under_way.append(written(pool, 1))
        used.append(identity(under_way[-1]))
        os.close(under_way.popleft())
    assert len(set(used[-100:])) <= in_flight + 2
    assert asked <= 3 * 200
    for fd in under_way:
        os.close(fd)


def test_messages_that_are_held_for_long_do_not_hide_the_free_segment(pool: Pool) -> None:
    held = [written(pool, 0) for _ in range(20)]
    os.close(held.pop(0))
    held.append(written(pool, 0))  # of an age of 19
    held += [written(pool, 0) for _ in range(20)]
    used = set()
    for _ in range(10):
        fd = written(pool, 1)
        used.add(identity(fd))
        os.close(fd)
    assert len(used) == 1
    for fd in held:
        os.close(fd)


def test_what_is_filled_piece_by_piece_is_lent_again_once_nobody_has_it(pool: Pool) -> None:
    segment = pool.borrow(SIZE)
    assert not pool.has(SIZE)  # as long as it is being filled
    segment.write_at(memoryview(b"\3" * (SIZE // 2)), 0)
    segment.write_at(memoryview(b"\4" * (SIZE // 2)), SIZE // 2)
    fd = pool.finish(segment)
    view = map_private(fd, SIZE)
    assert bytes(view) == b"\3" * (SIZE // 2) + b"\4" * (SIZE // 2)
    os.close(fd)
    other = pool.borrow(SIZE)
    assert other is not segment
    del view
    assert pool.borrow(SIZE) is segment
    other.close()
    segment.close()
