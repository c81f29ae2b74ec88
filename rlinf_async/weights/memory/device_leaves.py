"""Leaves of a slot in memory of the sender's GPU, for receivers on the same one; frees retired ones once unused."""

from __future__ import annotations

import fcntl
import os
import threading
from typing import Any, Final

import torch

from rlinf_async._core.own_logger import own_logger
from rlinf_async.weights.memory.gpus import Gpus
from rlinf_async.weights.memory.slot import OPENED_BYTE, lock
from rlinf_async.weights.model.manifest import Manifest

logger = own_logger(__name__)


class DeviceLeaves:
    """Leaves of one slot on a GPU: allocated once and exported once.

    Attributes:
        memory, views: all of it, and the leaves.
        name: plain data by which others open it: the GPU's uuid and a ``Handle``.

    Raises:
        Exception: there is no room on the GPU, or its memory cannot be shared.
    """

    def __init__(self, gpus: Gpus, manifest: Manifest, device: torch.device) -> None:
        self._gpus = gpus
        self.device = device
        self.memory = gpus.allocate(manifest.nbytes, device)
        try:
            self.name: list[Any] = [gpus.uuid(device), *gpus.export(self.memory)]
        except BaseException:
            gpus.free(self.memory)
            raise
        self.views = manifest.views(self.memory)

    def free(self) -> None:
        try:
            self._gpus.free(self.memory)
        except Exception as error:  # the driver has gone away, and the memory with it
            logger.info("memory of weights on %s could not be freed: %s", self.device, error)


retired: Final[list[tuple[int, DeviceLeaves]]] = []
_retiring: Final = threading.Lock()


def retire(fd: int, leaves: DeviceLeaves) -> None:
    """Free device leaves without a writer as soon as no other process has them open.

    CUDA does not define the effect of freeing memory that another process has open, so it is kept until none has. The
    kernel tells whether one has, even a killed one; a notice would take a thread that waits for nothing else and cannot
    be stopped. So the kernel is asked when more is packed or retired here, and the rest goes with the process.
    Receivers close such memory when they learn that their sender is gone. (A lease on the slot's file, as the pool of
    messages takes, would wait for mappings too, and a model of the CPU may stay mapped for long.)

    Args:
        fd: of ``SlotWriter.leave_gpu``; closed when they are freed.
    """
    with _retiring:
        retired.append((fd, leaves))
    free_retired()


def free_retired() -> int:
    """Free retired leaves that no process has open; return the number of others."""
    with _retiring:
        retired[:] = [(fd, leaves) for fd, leaves in retired if not _is_freed(fd, leaves)]
        return len(retired)


def _is_freed(fd: int, leaves: DeviceLeaves) -> bool:
    if not lock(fd, fcntl.F_WRLCK, OPENED_BYTE):
        return False
    leaves.free()
    os.close(fd)
    return True
