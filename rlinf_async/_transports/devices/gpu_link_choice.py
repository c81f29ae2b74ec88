"""``Gpu``, a worker's GPU as told to peers, and choice of the link between two: CUDA IPC, NCCL, or CPU-staged."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

CUDA_IPC: Final = "cuda_ipc"
NCCL: Final = "nccl"
STAGED: Final = "staged"

GPU_LINKS: Final = frozenset({CUDA_IPC, NCCL, STAGED})

MIN_GPU_LINK_BYTES: Final = 64 << 10
"""Bytes from which on a tensor stays on its GPU; smaller ones are sooner copied to the CPU with the rest."""


@dataclass(frozen=True)
class Gpu:
    """A GPU as one worker tells another of it.

    Attributes:
        machine: what tells machines apart, also where two of them have one name: the kernel's boot id.
        uuid: of the GPU, or of the slice of it that the worker has.
        model: as the driver names it.
    """

    machine: str
    uuid: str
    model: str


def gpu_link_between(ours: Gpu, theirs: Gpu, reachable: Collection[str] = ()) -> str:
    """The fastest way that works; both sides come to the same answer if both can reach the other's GPU.

    Args:
        ours, theirs: the GPUs that the two workers use.
        reachable: the uuids of other GPUs of this machine that both processes see and whose memory they can address.
            A worker to whom its own GPU alone is visible can open memory of no other.

    Returns:
        ``"cuda_ipc"`` where the memory itself can be opened, ``"nccl"`` between two GPUs of one model, and
        ``"staged"``, by way of pinned memory of the CPU, for the rest: NCCL refuses two ranks on one GPU, and what it
        makes of unequal ones is not to be relied upon.
    """
    if ours.machine == theirs.machine and (ours.uuid == theirs.uuid or theirs.uuid in reachable):
        return CUDA_IPC
    if ours.uuid != theirs.uuid and ours.model == theirs.model:
        return NCCL
    return STAGED
