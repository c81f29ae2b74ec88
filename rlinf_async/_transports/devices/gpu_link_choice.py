"""``Gpu``, a worker's GPU as announced to peers; chooses a link between two GPUs: CUDA IPC, NCCL or staged."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

CUDA_IPC: Final = "cuda_ipc"
NCCL: Final = "nccl"
STAGED: Final = "staged"

GPU_LINKS: Final = frozenset({CUDA_IPC, NCCL, STAGED})

MIN_GPU_LINK_BYTES: Final = 64 << 10
"""Size in bytes from which a tensor stays on its GPU; smaller tensors are faster through CPU memory."""


@dataclass(frozen=True)
class Gpu:
    """A GPU as one worker announces it to another.

    Attributes:
        machine: the kernel's boot id, which is unique even if two machines share a name.
        uuid: UUID of the GPU, or of the worker's slice of it.
        model: name given by the driver.
    """

    machine: str
    uuid: str
    model: str


def gpu_link_between(ours: Gpu, theirs: Gpu, reachable: Collection[str] = ()) -> str:
    """Return the fastest link that works. Both sides get the same answer if both can reach the other's GPU.

    Args:
        reachable: UUIDs of other GPUs on this machine that both processes see and whose memory they can address. A
            worker that sees only its own GPU cannot open another GPU's memory.

    Returns:
        ``"cuda_ipc"`` if the memory can be opened; otherwise ``"nccl"`` between two GPUs of the same model; otherwise
        ``"staged"``, through pinned CPU memory. NCCL refuses two ranks on one GPU, and is not reliable between
        different models.
    """
    if ours.machine == theirs.machine and (ours.uuid == theirs.uuid or theirs.uuid in reachable):
        return CUDA_IPC
    if ours.uuid != theirs.uuid and ours.model == theirs.model:
        return NCCL
    return STAGED
