"""Stands in for a GPU where there is none: large tensors of the CPU are taken for its memory."""

from __future__ import annotations

import mmap
import os
import weakref
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo

from rlinf_async._messaging import peers
from rlinf_async._transports.devices.cuda_ipc import CudaIpcLink
from rlinf_async._transports.devices.device_memory import IpcHandle
from rlinf_async._transports.devices.gpu_link_choice import CUDA_IPC, NCCL, STAGED, Gpu
from rlinf_async._transports.devices.nccl_link import NcclLink
from rlinf_async._transports.devices.own_gpu import OwnGpu
from rlinf_async._transports.devices.staging import StagedLink

CPU = torch.device("cpu")

GPUS = {
    CUDA_IPC: ("one machine", "one GPU", "one model"),
    NCCL: ("one machine", "", "one model"),
    STAGED: ("one machine", "", ""),
}
"""Machine, uuid and model of those between which a way leads; an empty one is each process's own."""


class StandIn(OwnGpu):
    """A GPU from which that way leads to others like it.

    Attributes:
        copies: bytes of tensors that were copied from it for the CPU's way.
        links: that were made.
    """

    def __init__(self, way: str, name: str = "") -> None:
        machine, uuid, model = GPUS[way]
        name = name or str(os.getpid())
        super().__init__(CPU, Gpu(machine, uuid or name, model or name))
        self.copies: list[int] = []
        self.links: list[Any] = []

    def keeps(self, obj: Any) -> bool:
        return isinstance(obj, torch.Tensor) and obj.nbytes >= 64 << 10

    def mark(self) -> str:
        return "mark"

    def follow(self, mark: Any) -> None:
        assert mark == "mark"

    def to_cpu(self, flat: torch.Tensor) -> memoryview:
        self.copies.append(flat.nbytes)
        return super().to_cpu(flat.clone())

    def make_link(self, name: str, post: Any, first: bool, address: str) -> Any:
        links = {
            CUDA_IPC: lambda: CudaIpcLink(post, first, address, CPU, FileMemory()),
            NCCL: lambda: NcclLink(post, first, address, CPU, make_gloo_group),
            STAGED: lambda: StagedLink(post, first, address, CPU),
        }
        self.links.append(links[name]())
        return self.links[-1]


def work_on(gpu: StandIn) -> None:
    """This process works on it, from the next message on."""
    peers._find_own_gpu = lambda: gpu


class Written:
    """A mark in a stream that has done all its work."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class FileMemory:
    """Memory that other processes open, in the place of CUDA's: as it was when it was exported."""

    def export(self, tensor: torch.Tensor) -> IpcHandle:
        fd = os.memfd_create("stands in for a GPU's memory", os.MFD_CLOEXEC)
        weakref.finalize(tensor, os.close, fd)
        os.truncate(fd, tensor.nbytes)
        with mmap.mmap(fd, tensor.nbytes) as memory:
            memory[:] = tensor.numpy().tobytes()
        return IpcHandle(f"/proc/{os.getpid()}/fd/{fd}".encode(), 0, tensor.nbytes)

    def open(self, handle: IpcHandle, device: torch.device) -> torch.Tensor:
        with open(handle.allocation, "r+b") as file:
            return torch.frombuffer(mmap.mmap(file.fileno(), handle.nbytes), dtype=torch.uint8)

    def mark(self, device: torch.device) -> Written:
        return Written()

    def close(self) -> None:
        pass


def make_gloo_group(store: Any, rank: int) -> Any:
    """In the place of NCCL's: as lonely, and with the same operations."""
    options = ProcessGroupGloo._Options()
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1", lazy_init=False)]
    # Of a peer that has been closed since it told its address, Gloo waits for a connection five times as long.
    options._threads, options._timeout = 0, timedelta(seconds=1)
    return ProcessGroupGloo(store, rank, 2, options)
