"""The interface of weights to GPUs; CUDA's, unless a stand-in takes its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import torch

from rlinf_async._transports.device_memory import Handle

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

    def beside(self, device: torch.device) -> AbstractContextManager[None]:
        """What this thread begins in the block waits for nothing that others have begun, and is done at its end.

        What it looks at has to be settled.
        """

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

    def export(self, memory: torch.Tensor) -> Handle:
        """What other processes of the machine, and this one, can ``open``."""

    def open(self, handle: Handle, device: torch.device) -> torch.Tensor:
        """Exported memory as flat bytes, until ``shut``."""

    def shut(self, handle: Handle, device: torch.device) -> None: ...


def copy_settled(gpus: Gpus, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copies what nobody is writing, to where nobody reads: there is nothing to wait for."""
    gpus.copy(targets, sources, dict.fromkeys(gpus.places([*targets, *sources])))
