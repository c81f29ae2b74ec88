"""The leaves of a slot in the sender's GPU memory, for receivers on that GPU; retired leaves are freed once unused."""

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
    """The leaves of one slot on a GPU, allocated and exported once.

    Attributes:
        memory, views: the whole memory, and the leaves in it.
        name: plain data with which other processes open the memory: the GPU's uuid and a ``Handle``.

    Raises:
        Exception: the GPU has no room, or its memory cannot be shared.
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
        except Exception as error:  # the driver was unloaded, which frees the memory
            logger.info("memory of weights on %s could not be freed: %s", self.device, error)


retired: Final[list[tuple[int, DeviceLeaves]]] = []
_retiring: Final = threading.Lock()


def retire(fd: int, leaves: DeviceLeaves) -> None:
    """Free device leaves whose slot is no longer written to, as soon as no other process has them open.

    CUDA does not define the effect of freeing memory that another process has open, so the memory is kept until no
    process has it open. Only the kernel knows this reliably, even if a process was killed, but waiting for the kernel's
    notification would occupy a thread that cannot be stopped. So the kernel is queried whenever a version is packed or
    leaves are retired, and the rest is freed when the process exits. Receivers close such memory when they learn that
    their sender has ended. (A lease on the slot's file, as the message pool uses, would also wait for mappings, and a
    model on the CPU may stay mapped for a long time.)

    Args:
        fd: descriptor from ``SlotWriter.leave_gpu``; closed when the leaves are freed.
    """
    with _retiring:
        retired.append((fd, leaves))
    free_retired()


def free_retired() -> int:
    """Free retired leaves that no process has open; return the number of remaining ones."""
    with _retiring:
        retired[:] = [(fd, leaves) for fd, leaves in retired if not _is_freed(fd, leaves)]
        return len(retired)


def _is_freed(fd: int, leaves: DeviceLeaves) -> bool:
    if not lock(fd, fcntl.F_WRLCK, OPENED_BYTE):
        return False
    leaves.free()
    os.close(fd)
    return True
