"""CPU memory to receive tensors into: ``WarmMemory``, a pool reused once unreferenced; ``GivenMemory``, one buffer.

Fresh memory costs a page fault per page, which more than halves the speed of a transfer that writes to it. So memory
released by a receiver is kept, up to a bound, and reused::

    view = warm.take(nbytes)        # writable; contents undefined
    tensor = torch.frombuffer(view, ...)
    del view, tensor                # the last reference, slices and arrays included, returns the memory
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref
from collections import deque
from typing import Final, Protocol

from rlinf_async import settings

_SMALL_BYTES: Final = 1 << 20
"""Size in bytes below which Python's allocator is just as fast."""


class Memory(Protocol):
    """An allocator of memory to receive into."""

    def take(self, nbytes: int) -> memoryview:
        """Return writable memory, exclusive to the caller while its views or tensors live, or raise MemoryError."""


class GivenMemory:
    """An allocator that returns an existing buffer for a request of exactly its size; other requests get new memory."""

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory

    def take(self, nbytes: int) -> memoryview:
        return self.memory if nbytes == self.memory.nbytes else memoryview(bytearray(nbytes))


class WarmMemory:
    """A pool of memory blocks, to which blocks return automatically once they are unreferenced; thread-safe."""

    def __init__(self, keep: int | None = None) -> None:
        self._keep = keep
        # Use a deque, not a lock, because the garbage collector may return memory on any thread, which may hold any
        # lock.
        self._unused: deque[mmap.mmap] = deque()

    def __repr__(self) -> str:
        return f"<WarmMemory {self.unused / (1 << 20):.1f} MiB unused>"

    @property
    def unused(self) -> int:
        return sum(map(len, tuple(self._unused)))

    def take(self, nbytes: int) -> memoryview:
        """Return memory with undefined contents, like ``Memory.take``."""
        if nbytes < _SMALL_BYTES:
            return memoryview(bytearray(nbytes))
        memory = self._find(nbytes) or _allocate(nbytes)
        held = (ctypes.c_ubyte * nbytes).from_buffer(memory)
        weakref.finalize(held, self._return, memory).atexit = False
        return memoryview(held).cast("B")

    def _find(self, nbytes: int) -> mmap.mmap | None:
        for _ in range(len(self._unused)):
            try:
                memory = self._unused.popleft()
            except IndexError:  # another thread took the last block
                break
            if nbytes <= len(memory) <= 2 * nbytes:
                return memory
            self._unused.append(memory)
        return None

    def _return(self, memory: mmap.mmap) -> None:
        self._unused.append(memory)
        with contextlib.suppress(IndexError):  # other threads return memory, too
            keep = settings.TENSOR_POOL_BYTES() if self._keep is None else self._keep
            while self.unused > keep:
                self._unused.popleft()


def _allocate(nbytes: int) -> mmap.mmap:
    # Round up by at most an eighth, so that messages of similar sizes can reuse the memory.
    step = max(mmap.PAGESIZE, 1 << max(0, nbytes.bit_length() - 4))
    try:
        memory = mmap.mmap(-1, -(-nbytes // step) * step, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for {nbytes / (1 << 20):.1f} MiB: {error.strerror}") from error
    with contextlib.suppress(OSError):  # the kernel may lack huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


warm: Final = WarmMemory()
"""Memory for messages that this process receives from other machines."""
