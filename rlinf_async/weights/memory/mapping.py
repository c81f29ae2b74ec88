"""Memory of a file, mapped: other threads go on while its pages come and go.

Python's own ``mmap`` keeps all of them waiting for as long as that takes, a tenth of a second and more for a gigabyte.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from rlinf_async.weights.memory.gpus import Registrar, Registration

_LIBC: Final = ctypes.CDLL(None, use_errno=True)  # lets other threads run during a call
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_FAILED: Final = ctypes.c_void_p(-1).value

_POPULATE_READ: Final = 22
_POPULATE_WRITE: Final = 23
"""``MADV_POPULATE_READ`` and ``MADV_POPULATE_WRITE``, which Python's mmap does not name."""

_STEP: Final = 8 << 20
"""Bytes that are asked for in one call, during which no other thread can map anything: a millisecond."""


class _Mapping:
    """Unmapped by whoever holds it last; what CUDA has registered of it, it is told before."""

    def __init__(self, address: int, size: int) -> None:
        self._place = address, size
        self.registration: Registration | None = None

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():
            return  # the process ends, and all its memory with it
        if self.registration is not None:
            self.registration.end()
        for address, size in _steps(*self._place):
            _LIBC.munmap(address, size)


def _steps(address: int, size: int) -> list[tuple[int, int]]:
    return [(address + start, min(_STEP, size - start)) for start in range(0, size, _STEP)]


def map_memory(fd: int, size: int, *, writable: bool) -> Any:
    """Maps all of a file, which others may have mapped too, with all its pages there: using it meets no page fault.

    Returns:
        ``size`` bytes as a ctypes array, mapped until the last tensor or view that is made from it is gone.  Whatever
        these think, memory that is not ``writable`` cannot be written to: that is a fault (SIGSEGV), not an exception.

    Raises:
        OSError: the system refuses it.
    """
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    address = _LIBC.mmap(None, size, access, mmap.MAP_SHARED, fd, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"{size} bytes cannot be mapped: {os.strerror(number)}")
    mapping = _Mapping(address, size)
    for start, length in _steps(address, size):
        _LIBC.madvise(start, length, _POPULATE_WRITE if writable else _POPULATE_READ)  # not before Linux 5.14
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    memory._held = mapping
    return memory


def registration_of(memory: Any) -> Registration | None:
    """That ``register`` has given to mapped memory."""
    registration: Registration | None = memory._held.registration
    return registration


def register(memory: Any, registrar: Registrar, device: torch.device) -> None:
    """A GPU copies from and to mapped memory at full speed, until its registration is ended or it is unmapped."""
    if memory._held.registration is None:
        memory._held.registration = registrar.register(ctypes.addressof(memory), len(memory), device)
