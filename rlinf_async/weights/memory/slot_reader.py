"""``SlotReader``: leases, reads and releases another process's slot, and opens its leaves on a GPU."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from rlinf_async._core.own_logger import own_logger
from rlinf_async._transports.devices.device_memory import IpcHandle
from rlinf_async.errors import TransferFailed
from rlinf_async.weights.memory.gpus import Gpus
from rlinf_async.weights.memory.slot import (
    ON_GPU,
    OPENED_BYTE,
    MemoryName,
    Slot,
    SlotHeader,
    SlotLayout,
    Views,
    lock,
)
from rlinf_async.weights.model.manifest import Manifest

logger = own_logger(__name__)


class MemoryGone(TransferFailed):
    """A failure to open another process's memory, which may already have been freed."""


class SlotReader(Slot):
    """Another process's slot, mapped read-only: writing to it causes SIGSEGV, not an exception.

    Read its leaves only under a lease, and only if the header says that they are in the slot.

    Attributes:
        views_on_gpu: the leaves on a GPU, once this process has opened them.

    Raises:
        MemoryGone: this process cannot open the slot, because its owner has exited, or runs on another machine, in
            another PID namespace or as another user.
    """

    def __init__(self, name: MemoryName, manifest: Manifest, layout: SlotLayout) -> None:
        self.name = name
        try:
            # Open for writing, so that ``Registrar`` can unprotect the memory.
            fd = os.open(name.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise MemoryGone(f"the sender's memory {name.path} cannot be opened: {error.strerror}") from error
        try:
            status = os.fstat(fd)
            if (status.st_ino, status.st_size) != (name.inode, name.size) or name.size != layout.size:
                raise MemoryGone(f"{name.path} is not the memory that its sender has announced")
            super().__init__(fd, manifest, layout, writable=False)
        except BaseException:
            os.close(fd)
            raise
        self._lease: int | None = None
        """A separate descriptor that owns the lock: closing it releases the lease here, but not in a forked child that
        reads the same memory."""
        self._shut: Callable[[], None] | None = None
        self._own_uses: list[tuple[torch.Tensor, int]] = []
        """Memory of the leaves, here and on a GPU, each with the number of this reader's own tensors that share it."""
        self.views_on_gpu: Views | None = None

    def __repr__(self) -> str:
        return f"<SlotReader {self.name.path}>"

    @property
    def header(self) -> SlotHeader:
        """The header, reliable only under a lease."""
        return SlotHeader.unpack(self._head)

    @property
    def views(self) -> Views:
        if self._views is None:
            _ = super().views
            self._own_uses.append((self.leaves, _uses(self.leaves)))
        return super().views

    @property
    def is_mapped(self) -> bool:
        """True if its leaves are mapped."""
        return self._views is not None

    def lease(self) -> SlotHeader | None:
        """Keep the writer out until ``release``.

        Returns:
            The header. None if the slot holds no version or is being written; nothing is leased in that case.

        Raises:
            OSError: no file descriptor is free.
        """
        if self._lease is None:
            self._lease = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
        if lock(self._lease, fcntl.F_RDLCK) and (header := self.header).is_whole:
            return header
        self.release()
        return None

    def release(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            os.close(lease)

    def is_looked_at(self, standing: int = 0) -> bool:
        """True if tensors of other users share the leaves' memory.

        Args:
            standing: number of the receiver's own mapped tensors, which do not count.
        """
        return bool(self._looked_at(standing))

    def _looked_at(self, standing: int = 0) -> list[torch.Tensor]:
        return [memory for memory, own in self._own_uses if memory.nbytes and _uses(memory) > own + standing]

    def extra(self, header: SlotHeader) -> bytes:
        return bytes(self._extra(header.extra))

    def open(self, gpus: Gpus, on_gpu: list[Any], device: torch.device) -> None:
        """Open the leaves on a GPU, if there are any yet, until ``close``. They, too, may be read only under a lease.

        Raises:
            Exception: this process cannot open the leaves.
        """
        _, *facts = on_gpu
        handle = IpcHandle(*facts)
        if handle.nbytes != self.nbytes:
            raise TransferFailed(
                f"{handle.nbytes} bytes on {device} are not the memory that their sender has announced"
            )
        if not lock(self._fd, fcntl.F_RDLCK, OPENED_BYTE):
            return
        # The owner removes the leaves from the header before it takes that lock, so either this process sees the
        # removal, or the leaves stay.
        try:
            if self.header.places & ON_GPU:
                memory = gpus.open(handle, device)
                self._shut = functools.partial(gpus.shut, handle, device)
                self.views_on_gpu = self._manifest.views(memory)
                self._own_uses.append((memory, _uses(memory)))
        finally:
            if self._shut is None:
                lock(self._fd, fcntl.F_UNLCK, OPENED_BYTE)

    def close(self) -> None:
        """Close the reader, as ``leave`` does."""
        self.leave()

    def leave(self) -> Pins:
        """Close the reader: release the lease, and close GPU memory.

        If other tensors are mapped to the leaves, the lease and the memory are kept until the last such tensor is
        dropped, so that no later version is written to their memory.

        Returns:
            The finalizers of memory that was kept.
        """
        looked_at = self._looked_at()
        with contextlib.ExitStack() as ends:
            if self._lease is not None:
                ends.callback(os.close, self._lease)
            if self._shut is not None:
                ends.callback(os.close, self._leave())  # keeps OPENED_BYTE locked as long as the memory is open
                ends.callback(_shut, self._shut)
            left = [ends.pop_all()] * len(looked_at) if looked_at else []
            pins = [weakref.finalize(memory.untyped_storage(), _end_one, left) for memory in looked_at]
        for pin in pins:
            pin.atexit = False
        self._lease = self._shut = self.views_on_gpu = None
        self._own_uses.clear()
        super().close()
        return pins


Pins: TypeAlias = "list[weakref.finalize[Any, Any]]"
"""Finalizers of memory, each alive as long as other tensors use the memory."""


def _end_one(left: list[contextlib.ExitStack]) -> None:
    """Record that one block of memory was freed; after the last block, release the lease."""
    ends = left.pop()
    if not left:
        ends.close()


def _shut(shut: Callable[[], None]) -> None:
    try:
        shut()
    except Exception as error:  # the driver was unloaded
        logger.info("memory of the sender's GPU could not be let go of: %s", error)


def _uses(memory: torch.Tensor) -> int:
    """Return the number of tensors, in this process, that share this tensor's memory."""
    # No public function counts them. The storage object created here counts as one of them.
    return torch._C._storage_Use_Count(memory.untyped_storage()._cdata)
