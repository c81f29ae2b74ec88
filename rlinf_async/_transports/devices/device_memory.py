"""CUDA IPC between processes: exports and opens GPU memory, by ctypes.

torch exports memory, too, but counts references in a file under ``/dev/shm``, which a killed process leaves behind.
This module counts nothing: the exporting process keeps the memory until the peer has released it. Events are not shared
between processes either, because CUDA uses a file per process for that, ``/dev/shm/cuda.shm.*``, which a killed process
leaves behind as well.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Final, NamedTuple, Protocol

import torch

_PEER_ACCESS: Final = 1


_Event: Any = torch.cuda.Event  # torch.cuda.Event has no annotations


class IpcHandle(NamedTuple):
    """Range of a GPU's memory: CUDA's handle of the allocation, and the position in it."""

    allocation: bytes
    offset: int
    nbytes: int


class Mark(Protocol):
    """Point in a stream's work, such as a ``torch.cuda.Event``."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


class DeviceMemory(Protocol):
    """Functions that export a GPU's memory and open memory of another process; tests replace CUDA's functions."""

    def export(self, tensor: torch.Tensor) -> IpcHandle:
        """Return the handle of a flat tensor's memory, valid in other processes while the memory lives."""

    def open(self, handle: IpcHandle, device: torch.device) -> torch.Tensor:
        """Return the exported memory as a flat tensor, which callers must not write to."""

    def mark(self, device: torch.device) -> Mark: ...

    def close(self) -> None: ...


class CudaMemory:
    """``DeviceMemory`` by CUDA IPC; each handle is opened only once while it is in use.

    The exporting side caches no handles: a new allocation may reuse an address.

    Raises, in all methods:
        RuntimeError: CUDA refuses; it has no handles for memory of expandable segments.
    """

    def __init__(self) -> None:
        self._opened: dict[bytes, tuple[int, torch.device]] = {}

    def export(self, tensor: torch.Tensor) -> IpcHandle:
        base, address, handle = ctypes.c_uint64(), ctypes.c_uint64(tensor.data_ptr()), _MemoryHandle()
        with torch.cuda.device(tensor.device):  # the calling thread's current device may be another one
            # A thread that has not used CUDA yet has no context, and torch makes none for a device that is already
            # current: the driver would fail with CUDA_ERROR_INVALID_CONTEXT (201).
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
    """Memory described by CUDA's array interface."""

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
    """Clear this thread's last CUDA error, which torch would otherwise raise at the next kernel of any code."""
    cuda_runtime().cudaGetLastError()
