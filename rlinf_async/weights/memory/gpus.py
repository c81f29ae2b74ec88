"""Interface of weights to GPUs (CUDA or a stand-in), and registration of mapped host memory with them."""

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
"""Point in the work of the caller's stream on each GPU; None: its beginning, before everything."""


class Gpus(Protocol):
    """The GPUs of this process.

    In a process that uses none, ``places`` and ``mark`` find that out without initialising anything, and nothing else
    is called.

    Raises, in all other methods:
        RuntimeError: the driver refuses, or there is no memory left.
    """

    def places(self, tensors: Iterable[torch.Tensor]) -> set[torch.device]:
        """Return the GPUs of these tensors."""

    def only_place(self, tensors: Sequence[torch.Tensor]) -> torch.device | None:
        """Return the GPU of all of these tensors; None if there is no such one."""

    def mark(self, devices: Iterable[torch.device]) -> Marks:
        """Return the progress of the caller's current streams on these GPUs."""

    def copy(
        self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], after: Marks | None = None
    ) -> None:
        """Copy each source to its target, as ``copy_tensors``; done when it returns.

        Args:
            after: marks that the copies wait for on each GPU, besides the work of this thread. A mark at the beginning
                waits for nothing at all; without a mark, the copies wait for all work of that GPU.
        """

    def follow(self, marks: Marks) -> None:
        """Have this thread's current streams continue after these marks."""

    def settle(self, device: torch.device) -> None:
        """Wait for all work of a GPU."""

    def register(self, address: int, nbytes: int, device: torch.device, *, read_only: bool) -> None:
        """Register host memory for copies at full speed until ``unregister``."""

    def unregister(self, address: int, device: torch.device) -> None: ...

    def uuid(self, device: torch.device) -> str:
        """Return the GPU's unique id; empty if its memory is not to be shared."""

    def allocate(self, nbytes: int, device: torch.device) -> torch.Tensor:
        """Return flat bytes that can be exported; they stay until ``free``, even without the tensor."""

    def free(self, memory: torch.Tensor) -> None: ...

    def export(self, memory: torch.Tensor) -> IpcHandle:
        """Return a handle that this and other processes of the machine can ``open``."""

    def open(self, handle: IpcHandle, device: torch.device) -> torch.Tensor:
        """Return exported memory as flat bytes, until ``shut``."""

    def shut(self, handle: IpcHandle, device: torch.device) -> None: ...


def copy_settled(gpus: Gpus, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy between memory that no stream uses, without waiting for one."""
    gpus.copy(targets, sources, dict.fromkeys(gpus.places([*targets, *sources])))


class Registrar:
    """Registers mapped memory; a mode that is refused once is not tried again.

    Cards that register nothing for reading only (``cudaErrorNotSupported``, 801) get memory that is writable meanwhile:
    it is protected again afterwards, and stays registered.

    Args:
        read_only: it is mapped for reading only, from files that are open for writing.
    """

    def __init__(self, gpus: Gpus, *, read_only: bool) -> None:
        self._gpus = gpus
        self._is_protected = read_only
        self._ways = [True, False] if read_only else [False]
        """Modes to try next: True registers for reading only."""

    def register(self, memory: Any, device: torch.device) -> Callable[[], object] | None:
        """Register memory, which takes a while and so belongs into a thread.

        Returns:
            A function that ends the registration, at the latest before the memory is unmapped. None if CUDA refuses:
            one warning says so, and copies are slower.
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
        except Exception as error:  # the driver has gone away, and with it all that it knew
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
