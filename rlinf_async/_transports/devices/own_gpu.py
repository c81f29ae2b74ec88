"""``OwnGpu``, this process's GPU: its announcement to peers, stream events, copies to the CPU, creation of links."""

from __future__ import annotations

import functools
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import torch

from rlinf_async._transports.devices.cuda_ipc import CudaIpcLink
from rlinf_async._transports.devices.device_link import DeviceLink
from rlinf_async._transports.devices.gpu_link_choice import CUDA_IPC, MIN_GPU_LINK_BYTES, NCCL, STAGED, Gpu
from rlinf_async._transports.devices.nccl_link import NcclLink
from rlinf_async._transports.devices.staging import StagedLink
from rlinf_async._transports.link import Post


class OwnGpu:
    """The GPU of this process: the current device of the first thread that sent or received while CUDA was in use.

    Attributes:
        device: the GPU's index in torch.
        gpu: the announcement to peers.
        reachable: UUIDs of other GPUs whose memory this process can open.
    """

    def __init__(self, device: torch.device, gpu: Gpu, reachable: Collection[str] = ()) -> None:
        self.device = device
        self.gpu = gpu
        self.reachable = frozenset(reachable)

    def __repr__(self) -> str:
        return f"<OwnGpu {self.device}: {self.gpu.model} {self.gpu.uuid}>"

    def keeps(self, obj: Any) -> bool:
        """True for a tensor on this GPU that is large enough for a link."""
        return (
            isinstance(obj, torch.Tensor)
            and obj.is_cuda
            and obj.device.index == self.device.index
            and obj.nbytes >= MIN_GPU_LINK_BYTES
        )

    def mark(self) -> Any:
        """Return the current position in the caller's stream."""
        return torch.cuda.current_stream(self.device).record_event()

    def follow(self, mark: Any) -> None:
        """Make the caller's current stream wait for a position."""
        torch.cuda.current_stream(self.device).wait_event(mark)

    def to_cpu(self, flat: torch.Tensor) -> memoryview:
        """Return a CPU copy of flat bytes, made after the work queued in the current stream."""
        memory: Any = flat.cpu().numpy()
        return memoryview(memory)

    def make_link(self, name: str, post: Post, first: bool, address: str) -> DeviceLink:
        """Create a link of the named kind. Raise ValueError if there is no such kind."""
        if name == CUDA_IPC:
            return CudaIpcLink(post, first, address, self.device)
        if name == NCCL:
            return NcclLink(post, first, address, self.device)
        if name == STAGED:
            return StagedLink(post, first, address, self.device)
        raise ValueError(f"there is no link {name!r} between GPUs")


_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def _machine() -> str:
    """Return a unique machine name; empty if the kernel has no boot id."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""


def find_own_gpu() -> OwnGpu | None:
    """Return this thread's current device if CUDA is in use; None if its memory cannot be shared."""
    if not torch.version.cuda or not _machine():
        return None
    index = torch.cuda.current_device()
    others = [other for other in range(torch.cuda.device_count()) if other != index]
    reachable = [_uuid(other) for other in others if torch.cuda.can_device_access_peer(index, other)]
    gpu = Gpu(_machine(), _uuid(index), torch.cuda.get_device_properties(index).name)
    return OwnGpu(torch.device("cuda", index), gpu, reachable)


def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)
