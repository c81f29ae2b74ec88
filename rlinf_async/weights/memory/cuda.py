"""``Cuda``: copies in separate streams, registers host memory, and shares device memory through IPC handles."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch

from rlinf_async._messaging.peers import SWITCH
from rlinf_async._transports.devices.device_memory import (
    CudaMemory,
    DeviceRegion,
    IpcHandle,
    cuda_runtime,
    forget_error,
)
from rlinf_async.weights.memory.gpus import Marks
from rlinf_async.weights.model.copying import as_integers, copy_tensors

_PORTABLE: Final = 1
_READ_ONLY: Final = 8
"""Flag values of ``cudaHostRegisterPortable`` and ``cudaHostRegisterReadOnly``."""

_PAGE: Final = 2 << 20
"""Size below which CUDA combines several allocations and exports them together."""

_cuda: Any = torch.cuda  # torch.cuda has few annotations


class Cuda:
    """The implementation of ``Gpus`` with CUDA."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._exported: dict[bytes, torch.Tensor] = {}
        self._allocated: dict[int, tuple[bytes | None, torch.device]] = {}
        """Maps the address of each allocation to its exported handle, if any, and its device."""
        self._opened: dict[bytes, tuple[CudaMemory, int]] = {}
        """Maps each handle to the opened memory and its number of users; closing it affects the whole process."""

    # -- devices of tensors ---------------------------------------------------------------------------------------

    def places(self, tensors: Iterable[torch.Tensor]) -> set[torch.device]:
        if not _cuda.is_initialized():
            return set()
        return {tensor.device for tensor in tensors if tensor.is_cuda}

    def only_place(self, tensors: Sequence[torch.Tensor]) -> torch.device | None:
        places = self.places(tensors)
        return places.pop() if len(places) == 1 and all(tensor.is_cuda for tensor in tensors) else None

    # -- copies -------------------------------------------------------------------------------------------------

    def mark(self, devices: Iterable[torch.device]) -> Marks:
        return {device: torch.cuda.current_stream(device).record_event() for device in devices}

    def copy(
        self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], after: Marks | None = None
    ) -> None:
        pairs: dict[torch.device, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for target, source in zip(targets, sources, strict=True):
            ours, theirs = pairs.setdefault(target.device if target.is_cuda else source.device, ([], []))
            ours.append(target)
            theirs.append(source)
        done = [self._begin(where, *pair, after) for where, pair in pairs.items() if where.type == "cuda"]
        for where, pair in pairs.items():
            if where.type != "cuda":
                copy_tensors(*pair)
        for event in done:
            event.synchronize()

    def _begin(
        self,
        device: torch.device,
        targets: Sequence[torch.Tensor],
        sources: Sequence[torch.Tensor],
        after: Marks | None,
    ) -> Any:
        """Copy in a separate stream; return an event that completes with the copies."""
        stream, done = self._stream(device), _cuda.Event(blocking=True)
        if after is None or device not in after:
            torch.cuda.synchronize(device)
        elif after[device] is not None:
            # This thread may have computed some of the sources on its current stream.
            stream.wait_stream(torch.cuda.current_stream(device))
            stream.wait_event(after[device])
        try:
            with torch.cuda.stream(stream), torch.no_grad():
                torch._foreach_copy_(*as_integers(targets, sources), non_blocking=True)
                done.record(stream)
        except BaseException:
            stream.synchronize()  # the caller may change or free the tensors after the error
            raise
        return done

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = _cuda.Stream(device)
        return self._streams[device]

    def follow(self, marks: Marks) -> None:
        for device, mark in marks.items():
            if mark is not None:
                torch.cuda.current_stream(device).wait_event(mark)

    def settle(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)

    # -- memory of the CPU --------------------------------------------------------------------------------------

    def register(self, address: int, nbytes: int, device: torch.device, *, read_only: bool) -> None:
        flags = _PORTABLE | (_READ_ONLY if read_only else 0)
        with torch.cuda.device(device):
            pointer, size = ctypes.c_void_p(address), ctypes.c_size_t(nbytes)
            _check(cuda_runtime().cudaHostRegister(pointer, size, ctypes.c_uint(flags)), "cudaHostRegister")

    def unregister(self, address: int, device: torch.device) -> None:
        with torch.cuda.device(device):
            _check(cuda_runtime().cudaHostUnregister(ctypes.c_void_p(address)), "cudaHostUnregister")

    # -- memory of a GPU ----------------------------------------------------------------------------------------

    def uuid(self, device: torch.device) -> str:
        if os.environ.get(SWITCH) == "0":
            return ""
        return str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))

    def allocate(self, nbytes: int, device: torch.device) -> torch.Tensor:
        """Allocate through CUDA, because torch's memory has no handles (expandable segments) or is shared."""
        pointer, size = ctypes.c_void_p(), ctypes.c_size_t(-(-nbytes // _PAGE) * _PAGE)
        with torch.cuda.device(device):
            if cuda_runtime().cudaMalloc(ctypes.byref(pointer), size):
                forget_error()
                torch.cuda.empty_cache()  # CUDA cannot allocate memory held by torch's cache
                _check(cuda_runtime().cudaMalloc(ctypes.byref(pointer), size), "cudaMalloc")
        address = pointer.value or 0
        self._allocated[address] = None, device
        return torch.as_tensor(DeviceRegion(address, nbytes), device=device)

    def free(self, memory: torch.Tensor) -> None:
        address = memory.data_ptr()
        name, device = self._allocated.pop(address)
        if name is not None:
            self._exported.pop(name, None)
        with torch.cuda.device(device):
            _check(cuda_runtime().cudaFree(ctypes.c_void_p(address)), "cudaFree")

    def export(self, memory: torch.Tensor) -> IpcHandle:
        handle = CudaMemory().export(memory)
        self._allocated[memory.data_ptr()] = handle.allocation, memory.device
        self._exported[handle.allocation] = memory
        return handle

    def open(self, handle: IpcHandle, device: torch.device) -> torch.Tensor:
        if handle.allocation in self._exported:  # CUDA does not open a handle in the process that exported it
            region = DeviceRegion(self._exported[handle.allocation].data_ptr(), handle.nbytes)
            return torch.as_tensor(region, device=device)  # a separate storage, whose users can be counted
        memory, users = self._opened.get(handle.allocation, (CudaMemory(), 0))
        opened = memory.open(handle, device)
        self._opened[handle.allocation] = memory, users + 1
        return opened

    def shut(self, handle: IpcHandle, device: torch.device) -> None:
        if handle.allocation not in self._opened:
            return
        memory, users = self._opened.pop(handle.allocation)
        if users > 1:
            self._opened[handle.allocation] = memory, users - 1
            return
        memory.close()


CUDA: Final = Cuda()
"""The CUDA devices of this process."""


def _check(status: int, what: str) -> None:
    if status:
        forget_error()
        raise RuntimeError(f"{what} failed with code {status}")
