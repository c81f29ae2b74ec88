"""Slot of another process: leased, read and released; opens its leaves on a GPU."""

from __future__ import annotations

import fcntl
import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from rlinf_async._core.own_logger import own_logger
from rlinf_async._transports.devices.device_memory import Handle
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
from rlinf_async.weights.model.digests import checksum_of
from rlinf_async.weights.model.manifest import Manifest

logger = own_logger(__name__)


class MemoryGone(TransferFailed):
    """Memory of another process that cannot be opened (any more)."""


class SlotReader(Slot):
    """Another process's slot, mapped for reading only: a write to it is a fault (SIGSEGV), not an exception.

    Its leaves are to be looked at under a lease only, and asked for once the header says that they are in the slot.

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
        """A descriptor of its own, whose lock it is and goes with it: to close it gives the lease back here, and not in
        a process that was forked meanwhile and looks at the same memory."""
        self._shut: Callable[[], None] | None = None
        self.views_on_gpu: Views | None = None

    def __repr__(self) -> str:
        return f"<SlotReader {self.name.path}>"

    @property
    def header(self) -> SlotHeader:
        """What is true of it as long as it is leased, and may change at any time otherwise."""
        return SlotHeader.unpack(self._head)

    @property
    def is_mapped(self) -> bool:
        """Whether its leaves are."""
        return self._views is not None

    def lease(self) -> SlotHeader | None:
        """Keeps the writer out until ``release``.

        Returns:
            What is in the slot; None where nothing is, or is being written: then there is no lease.

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

    def extra(self, header: SlotHeader) -> bytes:
        return bytes(self._extra(header.extra))

    def check(self, header: SlotHeader) -> None:
        """
        Raises:
            TransferFailed: it is not what was written.
        """
        found = checksum_of(self.leaves, self.extra(header))
        if header.checksum and found != header.checksum:
            raise TransferFailed(
                f"version {header.version} was written with checksum {header.checksum:#010x} and reads as {found:#010x}"
            )

    def open(self, gpus: Gpus, on_gpu: list[Any], device: torch.device) -> None:
        """Opens the leaves that are on a GPU, if there are any yet, until ``close``.

        They too are to be looked at under a lease only.

        Raises:
            Exception: they cannot be opened here.
        """
        _, *facts = on_gpu
        handle = Handle(*facts)
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
        finally:
            if self._shut is None:
                lock(self._fd, fcntl.F_UNLCK, OPENED_BYTE)

    def close(self) -> None:
        """As of a slot; gives the lease back, and closes the memory of a GPU: no tensor may stand in that any more."""
        self.release()
        self.views_on_gpu = None
        shut, self._shut = self._shut, None
        if shut is not None:
            try:
                shut()
            except Exception as error:  # the driver has gone away
                logger.info("memory of the sender's GPU could not be let go of: %s", error)
        super().close()
