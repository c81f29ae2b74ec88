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
"""Of some GPUs, a point in the work of the stream that was the caller's; None: its beginning, before everything."""


class Gpus(Protocol):
    """The GPUs of this process.

    In a process that uses none, ``places`` and ``mark`` find that out without bringing anything up, and nothing else is
    called.

    Raises, in all other methods:
        RuntimeError: the driver refuses, or there is no memory left.
    """

    def places(self, tensors: Iterable[torch.Tensor]) -> set[torch.device]:
        """The GPUs that some of them are on."""

    def only_place(self, tensors: Sequence[torch.Tensor]) -> torch.device | None:
        """The GPU that all of them are on."""

    def mark(self, devices: Iterable[torch.device]) -> Marks:
        """How far the caller's current streams have come on these."""

    def copy(
        self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], after: Marks | None = None
    ) -> None:
        """Copies each source to its target, as ``copy_tensors``; done when it returns.

        Args:
            after: what the copies wait for on each GPU, besides what this thread has begun; for the beginning they wait
                for nothing at all, and where it does not say, for all that was begun there.
        """

    def follow(self, marks: Marks) -> None:
        """This thread's current streams go on after these."""

    def settle(self, device: torch.device) -> None:
        """Waits until all that was begun there is done."""

    def register(self, address: int, nbytes: int, device: torch.device, *, read_only: bool) -> None:
        """Memory of the CPU that is copied from and to at full speed until ``unregister``."""

    def unregister(self, address: int, device: torch.device) -> None: ...

    def uuid(self, device: torch.device) -> str:
        """What tells this GPU from all others; empty where its memory is not to be shared."""

    def allocate(self, nbytes: int, device: torch.device) -> torch.Tensor:
        """Flat bytes that can be exported; they stay until ``free``, whatever becomes of the tensor."""

    def free(self, memory: torch.Tensor) -> None: ...

    def export(self, memory: torch.Tensor) -> IpcHandle:
        """What other processes of the machine, and this one, can ``open``."""

    def open(self, handle: IpcHandle, device: torch.device) -> torch.Tensor:
        """Exported memory as flat bytes, until ``shut``."""

    def shut(self, handle: IpcHandle, device: torch.device) -> None: ...


def copy_settled(gpus: Gpus, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copies between memory that no stream writes or reads: waits for none."""
    gpus.copy(targets, sources, dict.fromkeys(gpus.places([*targets, *sources])))


class Registrar:
    """Registers mapped memory; a way that is refused once is not tried again.

    Cards that register nothing for reading only (``cudaErrorNotSupported``, 801) get memory that can be written to for
    as long as that takes: it is protected again afterwards, and stays registered.

    Args:
        read_only: it is mapped for reading only, from files that are open for writing.
    """

    def __init__(self, gpus: Gpus, *, read_only: bool) -> None:
        self._gpus = gpus
        self._is_protected = read_only
        self._ways = [True, False] if read_only else [False]
        """Whether to register for reading only, that which is tried next first."""

    def register(self, memory: Any, device: torch.device) -> Callable[[], object] | None:
        """In a thread: it takes a while.

        Returns:
            What ends it, once, and is called before the memory is unmapped at the latest.  None where CUDA refuses: one
            warning says so, and copies are slower.
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
