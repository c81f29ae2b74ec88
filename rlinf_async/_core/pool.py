"""Pool of a sender's shared-memory segments, reused once file leases show that no other process has them open.

Writing to fresh shared memory takes three times as long as writing to warm memory, because the kernel clears every
page. So a process keeps the segments that it has sent, and asks the kernel whether one is free. Every receiver gets its
own read-only descriptor, and a write lease (``F_SETLEASE``) is granted on a file only while no other process has it
open. A descriptor in a daemon or in transit in a socket counts as open, and so does a mapping, even one inherited by a
forked child. Receivers need not return anything, and the segments of a killed receiver also become free::

    owner       fd = pool.write(parts, nbytes) ── the descriptor goes with a frame ──► receiver maps it, closes it
    owner       pool.write(…): the kernel refuses the lease, another segment is taken
    receiver    drops its last view
    owner       pool.write(…): the lease is granted, and returned at once; the same warm memory is written again

If the kernel grants no leases, no segment ever counts as free, and each message gets a fresh one.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import signal
import threading
import weakref
from collections.abc import Sequence
from typing import Final

from rlinf_async import settings
from rlinf_async._core.mapping import map_memory
from rlinf_async._core.segment import allocate_segment, seal_segment, write_segment

_MAX_SEGMENTS: Final = 64

# Number of leases tried near the segment that was last found free, whose memory may still be in the processor's caches;
# after that, as many of the least recently used segments are tried.
_MAX_INSPECTED: Final = 8

_PIECE_BYTES: Final = 1 << 20  # other threads may run between two pieces

Part = bytes | bytearray | memoryview


class PooledSegment:
    """A segment of shared memory in a pool; its owner's descriptor is open for writing."""

    __slots__ = ("fd", "memory", "size")

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self.memory: memoryview | None = None

    def is_free(self) -> bool:
        try:
            fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            return False
        fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True

    def fill(self, parts: Sequence[Part]) -> None:
        if self.memory is None:
            self.memory = memoryview(map_memory(self.fd, self.size, writable=True)).cast("B")
        offset = 0
        for part in parts:
            view = memoryview(part).cast("B")
            for start in range(0, len(view), _PIECE_BYTES):
                piece = view[start : start + _PIECE_BYTES]
                self.memory[offset : offset + len(piece)] = piece
                offset += len(piece)

    def write_at(self, piece: memoryview, offset: int) -> None:
        while piece:
            written = os.pwrite(self.fd, piece, offset)
            piece, offset = piece[written:], offset + written

    def hand_out(self) -> int:
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        self.memory = None  # dropping the reference unmaps the memory
        os.close(self.fd)


class Pool:
    """The segments of this process; any thread may call the methods."""

    def __init__(self, keep: float | None = None) -> None:
        self._keep = keep
        self._segments: list[PooledSegment] = []
        # Position of the segment last found free, counted from the newest of its size; about that many are in flight.
        self._age = 0
        self._lock = threading.Lock()
        _pools.add(self)

    def __repr__(self) -> str:
        kept = sum(segment.size for segment in self._segments)
        return f"<Pool {len(self._segments)} segments [{kept / (1 << 20):.1f} MiB]>"

    def write(self, parts: Sequence[Part], nbytes: int) -> int:
        """Return a read-only descriptor of sealed memory that begins with the parts. Raises like ``write_segment``.

        The caller sends the descriptor and closes it. The content does not change as long as the descriptor, or
        anything made from it, is open in any process.
        """
        segment = self._take(nbytes)
        try:
            if segment is None:
                segment = _make(parts, nbytes)
            else:
                segment.fill(parts)
            return segment.hand_out()
        finally:
            if segment is not None:
                self._put(segment)

    def borrow(self, nbytes: int) -> PooledSegment:
        """Return a segment to fill (``write_at``) and then pass to ``finish`` or close. Raises like ``write``."""
        segment = self._take(nbytes)
        if segment is None:
            size = _rounded(nbytes)
            made = allocate_segment(size)
            try:
                seal_segment(made)
            except BaseException:
                os.close(made)
                raise
            segment = _adopt(made, size)
        return segment

    def finish(self, segment: PooledSegment) -> int:
        """Put a borrowed segment into the pool. Return a read-only descriptor of it, like ``write``."""
        try:
            return segment.hand_out()
        finally:
            self._put(segment)

    def has(self, nbytes: int) -> bool:
        """True if a free segment of that size exists, so that a write allocates no memory."""
        with self._lock:
            return self._find(nbytes) is not None

    def _take(self, nbytes: int) -> PooledSegment | None:
        with self._lock:
            index = self._find(nbytes)
            return None if index is None else self._segments.pop(index)

    def _find(self, nbytes: int) -> int | None:
        segments = self._segments
        fitting = [index for index in range(len(segments) - 1, -1, -1) if nbytes <= segments[index].size <= 2 * nbytes]
        count = len(fitting)
        first = max(0, min(self._age, count) - 1)
        nearby = range(first, min(first + _MAX_INSPECTED, count))
        oldest = range(count - 1, max(nearby.stop, count - _MAX_INSPECTED) - 1, -1)
        for age in itertools.chain(nearby, oldest):
            index = fitting[age]
            if segments[index].is_free():
                self._age = age
                return index
        self._age = 0
        return None

    def _put(self, segment: PooledSegment) -> None:
        with self._lock:
            self._segments.append(segment)
            kept = sum(segment.size for segment in self._segments)
            if self._keep is None:
                self._keep = settings.SEGMENT_POOL_BYTES()
            while kept > self._keep or len(self._segments) > _MAX_SEGMENTS:
                oldest = self._segments.pop(0)
                kept -= oldest.size
                oldest.close()

    def close(self) -> None:
        """Close all segments; receivers keep theirs. Idempotent."""
        with self._lock:
            segments, self._segments = self._segments, []
        for segment in segments:
            segment.close()

    def forget(self) -> None:
        """Drop the parent's segments in a forked child, because only the parent may write to them."""
        self._lock = threading.Lock()
        self.close()


def _make(parts: Sequence[Part], nbytes: int) -> PooledSegment:
    size = _rounded(nbytes)
    return _adopt(write_segment(parts, nbytes, size), size)


def _adopt(made: int, size: int) -> PooledSegment:
    try:
        # A lease requires a descriptor that was opened by name; a memfd's own descriptor does not suffice.
        fd = os.open(f"/proc/self/fd/{made}", os.O_RDWR | os.O_CLOEXEC)
    finally:
        os.close(made)
    # When a leased file is opened, its holder gets a signal. SIGURG is ignored by default; the usual SIGIO would kill
    # the process.
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
    return PooledSegment(fd, size)


def _rounded(nbytes: int) -> int:
    """Round up to whole pages, by at most a sixteenth, so that segments of similar sizes can be shared."""
    step = max(mmap.PAGESIZE, 1 << max(0, nbytes.bit_length() - 5))
    return -(-nbytes // step) * step


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()

pool: Final = Pool()  # the pool for this process's message bodies


def _after_fork() -> None:
    for each in list(_pools):
        each.forget()


os.register_at_fork(after_in_child=_after_fork)
