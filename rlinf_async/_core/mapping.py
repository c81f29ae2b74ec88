"""Memory-mapped files whose pages can be mapped and unmapped while other threads run.

Python's own ``mmap`` holds the GIL all the time, for a tenth of a second or more per gigabyte, and keeps a descriptor
open for each mapping.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any, Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)  # ctypes releases the GIL during a call
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.madvise.argtypes = _LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_FAILED: Final = ctypes.c_void_p(-1).value

_POPULATE_READ: Final = 22
_POPULATE_WRITE: Final = 23

# A system call for this many bytes takes about a millisecond, during which no other thread can map memory.
_STEP_BYTES: Final = 8 << 20


def _steps(address: int, size: int) -> list[tuple[int, int]]:
    return [(address + start, min(_STEP_BYTES, size - start)) for start in range(0, size, _STEP_BYTES)]


def _access(writable: bool) -> int:
    return mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)


def map_memory(fd: int, size: int, offset: int = 0, *, writable: bool) -> Any:
    """Map a part of a file, shared with other mappings, with all pages present, so that access causes no page fault.

    The part begins at a multiple of the page size. The ctypes array stays mapped until the last tensor or view made
    from it is gone; finalizers attached to it (``weakref.finalize``) run earlier. A write to memory that is not
    ``writable`` causes a fault (SIGSEGV), not an exception, whatever the view claims.
    """
    address = _LIBC.mmap(None, size, _access(writable), mmap.MAP_SHARED, fd, offset)
    if address == _FAILED:
        raise _error(f"{size} bytes cannot be mapped")
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    # The kernel unmaps everything when the process exits.
    weakref.finalize(memory, _unmap, address, size).atexit = False
    for start, length in _steps(address, size):
        # Before Linux 5.14, the call fails, and pages are mapped on first access instead.
        _LIBC.madvise(start, length, _POPULATE_WRITE if writable else _POPULATE_READ)
    return memory


def _unmap(address: int, size: int) -> None:
    for start, length in _steps(address, size):
        _LIBC.munmap(start, length)


def protect(memory: Any, *, writable: bool) -> None:
    """Allow or forbid writing to mapped memory of a file that is open for writing."""
    if _LIBC.mprotect(ctypes.addressof(memory), len(memory), _access(writable)):
        raise _error(f"the protection of {len(memory)} bytes cannot be changed")


def _error(text: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{text}: {os.strerror(number)}")
