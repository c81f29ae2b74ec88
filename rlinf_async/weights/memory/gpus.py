"""``Gpus``, an interface to GPUs (CUDA or a stand-in), and ``Registrar``, which registers host memory with them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import torch

from rlinf_async._core.mapping import protect
from rlinf_async._core.own_logger import own_logger
from rlinf_async._transports.devices.device_memory import IpcHandle

logger = own_logger(__name__)

Marks: TypeAlias = Mapping[torch.device, Any]
"""Maps each GPU to a point in the work of the caller's stream; None means before all work."""


class Gpus(Protocol):
    """The GPUs of this process.

    In a process that uses no GPU, ``places`` and ``mark`` detect that without initialising anything, and no other
    method is called.

    Raises, in all other methods:
        RuntimeError: the driver refuses the operation, or there is no memory left.
    """

    def places(self, tensors: Iterable[torch.Tensor]) -> set[torch.device]:
        """Return the GPUs of these tensors."""

    def only_place(self, tensors: Sequence[torch.Tensor]) -> torch.device | None:
        """Return the GPU that holds all of these tensors; None if there is none."""

    def mark(self, devices: Iterable[torch.device]) -> Marks:
        """Return marks of the caller's current streams on these GPUs."""

    def copy(
        self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], after: Marks | None = None
    ) -> None:
        """Copy each source to its target, as ``copy_tensors`` does; complete on return.

        Args:
            after: marks after which the copies start on each GPU, in addition to this thread's earlier work. A mark of
                None does not wait at all; a GPU without a mark finishes all its work first.
        """

    def follow(self, marks: Marks) -> None:
        """Make this thread's current streams continue after these marks."""

    def settle(self, device: torch.device) -> None:
        """Wait until a GPU has finished all its work."""

    def register(self, address: int, nbytes: int, device: torch.device, *, read_only: bool) -> None:
        """Register host memory until ``unregister``, so that copies run at full speed."""

    def unregister(self, address: int, device: torch.device) -> None: ...

    def uuid(self, device: torch.device) -> str:
        """Return the GPU's unique id; empty if its memory must not be shared."""

    def allocate(self, nbytes: int, device: torch.device) -> torch.Tensor:
        """Return flat bytes that can be exported; they stay allocated until ``free``, even if the tensor is dropped."""

    def free(self, memory: torch.Tensor) -> None: ...

    def export(self, memory: torch.Tensor) -> IpcHandle:
        """Return a handle that this machine's processes can ``open``."""

    def open(self, handle: IpcHandle, device: torch.device) -> torch.Tensor:
        """Return exported memory as flat bytes, valid until ``shut``."""

    def shut(self, handle: IpcHandle, device: torch.device) -> None: ...


def copy_settled(gpus: Gpus, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy between memory that no stream uses, without waiting for a stream."""
    gpus.copy(targets, sources, dict.fromkeys(gpus.places([*targets, *sources])))


class Registrar:
    """A registrar of mapped memory, which does not retry a mode that was refused.

    For GPUs that do not support read-only registration (``cudaErrorNotSupported``, 801), the memory is made writable
    while it is registered, then protected again; it stays registered.

    Args:
        read_only: True if the memory is mapped read-only, from files that are open for writing.
    """

    def __init__(self, gpus: Gpus, *, read_only: bool) -> None:
        self._gpus = gpus
        self._is_protected = read_only
        self._ways = [True, False] if read_only else [False]
        """Modes to try next; True registers memory for reading only."""

    def register(self, memory: Any, device: torch.device) -> Callable[[], object] | None:
        """Register memory; slow, so call it in a thread.

        Returns:
            A function that ends the registration, to be called before the memory is unmapped. None if CUDA refuses,
            which is logged once and makes copies slower.
        """
        while self._ways:
            try:
                self._register(memory, device, read_only=self._ways[0])
            except Exception as error:
                del self._ways[0]
                if not self._ways:
                    logger.warning("weights are copied from and to %s at less than full speed: %s", device, error)
            else:
                end = weakref.finalize(memory, self._end, ctypes.addressof(memory), device)
                end.atexit = False
                return end
        return None

    def _end(self, address: int, device: torch.device) -> None:
        try:
            self._gpus.unregister(address, device)
        except Exception as error:  # the driver was unloaded, which has ended the registration
            logger.info("memory of weights could not be taken back from CUDA: %s", error)

    def _register(self, memory: Any, device: torch.device, *, read_only: bool) -> None:
        unprotects = self._is_protected and not read_only
        if unprotects:
            protect(memory, writable=True)
        try:
            self._gpus.register(ctypes.addressof(memory), len(memory), device, read_only=read_only)
        finally:
            if unprotects:
                protect(memory, writable=False)
