"""CUDA IPC between processes: exports and opens GPU memory, by ctypes.

torch exports memory too, but counts references in a file under ``/dev/shm``, which a killed process leaves behind.
Here nothing is counted: whoever exports memory keeps it until it hears that it is not needed any more.  Events are not
shared between processes either, because CUDA does that through a file per process, ``/dev/shm/cuda.shm.*``, which a
killed process leaves behind as well.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Final, NamedTuple, Protocol

import torch

_PEER_ACCESS: Final = 1
"""``cudaIpcMemLazyEnablePeerAccess``."""


_Event: Any = torch.cuda.Event  # which has no annotations


class Handle(NamedTuple):
    """A stretch of a GPU's memory: CUDA's handle of the allocation, and where in it."""

    allocation: bytes
    offset: int
    nbytes: int


class Mark(Protocol):
    """A point in a stream's work, as ``torch.cuda.Event``."""

    def query(self) -> bool:
        """True if the stream has come so far."""

    def synchronize(self) -> None:
        """Wait until it has."""


class DeviceMemory(Protocol):
    """Exports a GPU's memory, and opens another process's; by CUDA, unless something else is to take its place."""

    def export(self, tensor: torch.Tensor) -> Handle:
        """The handle of a flat tensor's memory, good in other processes for as long as the memory is."""

    def open(self, handle: Handle, device: torch.device) -> torch.Tensor:
        """The exported memory as a flat tensor, which is not to be written to."""

    def mark(self, device: torch.device) -> Mark:
        """Record a point in the current stream's work."""

    def close(self) -> None:
        """Lets go of whatever was opened, all of which has been copied."""


class CudaMemory:
    """``DeviceMemory`` by CUDA IPC: each handle is opened once until all are closed.

    None is kept where it is exported: what is allocated at an address may change.

    Raises, in all methods:
        RuntimeError: CUDA refuses; for memory of expandable segments it has no handles.
    """

    def __init__(self) -> None:
        self._opened: dict[bytes, tuple[int, torch.device]] = {}

    def export(self, tensor: torch.Tensor) -> Handle:
        base, address, handle = ctypes.c_uint64(), ctypes.c_uint64(tensor.data_ptr()), _MemoryHandle()
        with torch.cuda.device(tensor.device):  # and not whatever is current in the thread that has come here
            # A thread that has not used CUDA yet has no context, and torch makes none for a device that is current
            # already: the driver would refuse with CUDA_ERROR_INVALID_CONTEXT (201).
            _check(cuda_runtime().cudaSetDevice(tensor.device.index), "find its memory")
            _check(_driver().cuMemGetAddressRange_v2(ctypes.byref(base), None, address), "find its memory")
            _check(cuda_runtime().cudaIpcGetMemHandle(ctypes.byref(handle), ctypes.c_void_p(base.value)), "export it")
        return Handle(bytes(handle), address.value - base.value, tensor.nbytes)

    def open(self, handle: Handle, device: torch.device) -> torch.Tensor:
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
    """Memory as CUDA's array interface describes it."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}


@functools.cache
def cuda_runtime() -> Any:
    """CUDA's runtime, which torch has loaded for everybody."""
    return ctypes.CDLL(None)


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _check(status: int, what: str) -> None:
    if status:
        forget_error()
        raise RuntimeError(f"CUDA cannot share memory of a GPU between processes: to {what} failed with code {status}")


def forget_error() -> None:
    """The runtime keeps this thread's last error, and torch would raise it at the next kernel, of whomever."""
    cuda_runtime().cudaGetLastError()
