"""Slot of another process: leased, read and released; opens its leaves on a GPU."""

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
    """Memory of another process that cannot be opened (any more)."""


class SlotReader(Slot):
    """Another process's slot, mapped for reading only: a write to it is a fault (SIGSEGV), not an exception.

    Its leaves may be read under a lease only, once the header says that they are in the slot.

    Attributes:
        views_on_gpu: the leaves on a GPU, once they are open.

    Raises:
        MemoryGone: it cannot be opened here: its owner is gone, or lives on another machine, in another PID namespace
            or under another user.
    """

    def __init__(self, name: MemoryName, manifest: Manifest, layout: SlotLayout) -> None:
        self.name = name
        try:
            fd = os.open(name.path, os.O_RDWR | os.O_CLOEXEC)  # so that ``Registrar`` may unprotect it
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
        """A descriptor of its own, which owns the lock: closing it releases the lease here, and not in a forked child
        that reads the same memory."""
        self._shut: Callable[[], None] | None = None
        self._own_uses: list[tuple[torch.Tensor, int]] = []
        """Memory of the leaves, here and on a GPU, with the number of this reader's own tensors that share it."""
        self.views_on_gpu: Views | None = None

    def __repr__(self) -> str:
        return f"<SlotReader {self.name.path}>"

    @property
    def header(self) -> SlotHeader:
        """The header, which is reliable only under a lease."""
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
            The header; None, without a lease, if the slot holds no version or is being written.

        Raises:
            OSError: there is no file descriptor for it.
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
        """True if tensors that are not this reader's share the memory of the leaves.

        Args:
            standing: number of known tensors that do not count.
        """
        return bool(self._looked_at(standing))

    def _looked_at(self, standing: int = 0) -> list[torch.Tensor]:
        return [memory for memory, own in self._own_uses if memory.nbytes and _uses(memory) > own + standing]

    def extra(self, header: SlotHeader) -> bytes:
        return bytes(self._extra(header.extra))

    def open(self, gpus: Gpus, on_gpu: list[Any], device: torch.device) -> None:
        """Open leaves on a GPU, if there are any yet, until ``close``; they too may be read under a lease only.

        Raises:
            Exception: they cannot be opened here.
        """
        _, *facts = on_gpu
        handle = IpcHandle(*facts)
        if handle.nbytes != self.nbytes:
            raise TransferFailed(
                f"{handle.nbytes} bytes on {device} are not the memory that their sender has announced"
            )
        if not lock(self._fd, fcntl.F_RDLCK, OPENED_BYTE):
            return
        # Their owner takes them out of the header before it asks for that lock: either that is seen here, or they stay.
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
        """Close it, as ``leave``."""
        self.leave()

    def leave(self) -> Pins:
        """Close it: release the lease, and close the memory of a GPU.

        Tensors of others that are mapped to the leaves keep both until the last of them is gone: no other version comes
        into that memory meanwhile.

        Returns:
            The finalizers of such memory.
        """
        looked_at = self._looked_at()
        with contextlib.ExitStack() as ends:
            if self._lease is not None:
                ends.callback(os.close, self._lease)
            if self._shut is not None:
                if looked_at:
                    ends.callback(os.close, os.dup(self._fd))  # OPENED_BYTE stays locked as long as this file is open
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
"""Finalizers of memory, each alive as long as tensors of others use that memory."""


def _end_one(left: list[contextlib.ExitStack]) -> None:
    """Note that one stretch of memory is gone; the lease goes with the last one."""
    ends = left.pop()
    if not left:
        ends.close()


def _shut(shut: Callable[[], None]) -> None:
    try:
        shut()
    except Exception as error:  # the driver has gone away
        logger.info("memory of the sender's GPU could not be let go of: %s", error)


def _uses(memory: torch.Tensor) -> int:
    """Return the number of tensors, here and elsewhere, that share the memory of this one."""
    # Nothing public counts them: a storage that Python sees is one of them, whatever it is the storage of.
    return torch._C._storage_Use_Count(memory.untyped_storage()._cdata)
