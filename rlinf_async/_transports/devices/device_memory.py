"""CUDA IPC between processes: exports and opens GPU memory through ctypes.

torch can also export memory, but it counts references in a file under ``/dev/shm``, which a killed process leaves
behind. This module counts no references: the exporting process keeps the memory until the peer has released it. Nor are
events shared between processes, because CUDA creates a file per process for them, ``/dev/shm/cuda.shm.*``, which a
killed process also leaves behind.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Final, NamedTuple, Protocol

import torch

_PEER_ACCESS: Final = 1


_Event: Any = torch.cuda.Event  # torch.cuda.Event has no annotations


class IpcHandle(NamedTuple):
    """A range of GPU memory: CUDA's handle for the allocation, and the range's position in it."""

    allocation: bytes
    offset: int
    nbytes: int


class Mark(Protocol):
    """A point in a stream's work, such as a ``torch.cuda.Event``."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


class DeviceMemory(Protocol):
    """The interface for exporting GPU memory and opening another process's memory; tests use a replacement for CUDA."""

    def export(self, tensor: torch.Tensor) -> IpcHandle:
        """Return the handle of a flat tensor's memory, valid in other processes while the memory lives."""

    def open(self, handle: IpcHandle, device: torch.device) -> torch.Tensor:
        """Return the exported memory as a flat tensor, which callers must not write to."""

    def mark(self, device: torch.device) -> Mark: ...

    def close(self) -> None: ...


class CudaMemory:
    """``DeviceMemory`` over CUDA IPC; a handle in use is opened only once.

    The exporting side caches no handles, because a new allocation may reuse an address.

    Raises, in all methods:
        RuntimeError: CUDA refuses, for example because expandable segments have no handles.
    """

    def __init__(self) -> None:
        self._opened: dict[bytes, tuple[int, torch.device]] = {}

    def export(self, tensor: torch.Tensor) -> IpcHandle:
        base, address, handle = ctypes.c_uint64(), ctypes.c_uint64(tensor.data_ptr()), _MemoryHandle()
        with torch.cuda.device(tensor.device):  # the calling thread's current device may differ
            # A thread that has not used CUDA yet has no context, and torch creates none for a device that is already
            # current, so the driver would fail with CUDA_ERROR_INVALID_CONTEXT (201).
            _check(cuda_runtime().cudaSetDevice(tensor.device.index), "find its memory")
            _check(_driver().cuMemGetAddressRange_v2(ctypes.byref(base), None, address), "find its memory")
            _check(cuda_runtime().cudaIpcGetMemHandle(ctypes.byref(handle), ctypes.c_void_p(base.value)), "export it")
        return IpcHandle(bytes(handle), address.value - base.value, tensor.nbytes)

    def open(self, handle: IpcHandle, device: torch.device) -> torch.Tensor:
        if handle.allocation not in self._opened:
            base = ctypes.c_void_p()
            handle_ = _MemoryHandle.from_buffer_copy(handle.allocation)
            with torch.cuda.device(device):
                _check(cuda_runtime().cudaIpcOpenMemHandle(ctypes.byref(base), handle_, _PEER_ACCESS), "open it")
            self._opened[handle.allocation] = base.value or 0, device
        region = DeviceRegion(self._opened[handle.allocation][0] + handle.offset, handle.nbytes)
        return torch.as_tensor(region, device=device)

    def mark(self, device: torch.device) -> Mark:
        event: Mark = torch.cuda.current_stream(device).record_event(_Event(blocking=True))
        return event

    def close(self) -> None:
        opened, self._opened = self._opened, {}
        failures = []
        for base, device in opened.values():
            with torch.cuda.device(device):
                failures.append(cuda_runtime().cudaIpcCloseMemHandle(ctypes.c_void_p(base)))
        _check(max(failures, default=0), "close it")


class _MemoryHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


class DeviceRegion:
    """A memory range described by CUDA's array interface."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}


@functools.cache
def cuda_runtime() -> Any:
    """Return CUDA's runtime library, which torch has loaded."""
    return ctypes.CDLL(None)


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _check(status: int, what: str) -> None:
    if status:
        forget_error()
        raise RuntimeError(f"CUDA cannot share memory of a GPU between processes: to {what} failed with code {status}")


def forget_error() -> None:
    """Clear this thread's last CUDA error, which torch would otherwise raise at the next kernel launch."""
    cuda_runtime().cudaGetLastError()
