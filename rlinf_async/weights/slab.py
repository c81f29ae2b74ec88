"""The memory of one slot: written by one process, read by others, freed by the kernel with the last of them.

A slot is sealed anonymous memory (memfd), found by others under ``/proc``.  Who reads it holds a *lease*, a read lock
of the kernel's on it (an open-file-description lock); who writes it holds a write lock.  So no version is overwritten
while it is read, and the lease of a process that has been killed is gone with the process::

    sender    SlotWriter ── claim, begin, pack, finish ──┐
                                                      /proc/<pid>/fd/<n>
    receiver  SlotReader ── lease, read, release ────────┘
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import struct
import zlib
from typing import Any, Final, NamedTuple

import numpy
import torch

from rlinf_async.core.segment import allocate_segment, seal_segment
from rlinf_async.errors import TransferFailed
from rlinf_async.weights.registered import Registrar, Registration
from rlinf_async.weights.slab_layout import HEADER_BYTES, SlotHeader, SlotLayout

_POPULATE_READ: Final = 22
_POPULATE_WRITE: Final = 23
"""``MADV_POPULATE_READ`` and ``MADV_POPULATE_WRITE``, which Python's mmap does not name."""


class MemoryName(NamedTuple):
    """Where a slot is found by other processes of this machine, as plain data.

    Attributes:
        path: of the writer's descriptor.
        inode: of the memory: a descriptor's number is used again.
    """

    path: str
    inode: int
    size: int


class SlotWriter:
    """One slot, as its owner has it.  All its memory is there from the beginning: packing meets no page fault.

    Raises:
        MemoryError, OSError: there is no memory, or no file descriptor, for it.
    """

    def __init__(self, layout: SlotLayout, digest: bytes, label: str = "weights") -> None:
        self._layout = layout
        self._header = SlotHeader(digest)
        self._fd = allocate_segment(layout.size, f"rlinf-{label}"[:200])
        seal_segment(self._fd)
        self._map = mmap.mmap(self._fd, layout.size)
        with contextlib.suppress(OSError):  # before Linux 5.14
            self._map.madvise(_POPULATE_WRITE)
        self._set()
        inode = os.fstat(self._fd).st_ino
        self.name = MemoryName(f"/proc/{os.getpid()}/fd/{self._fd}", inode, layout.size)
        self.leaves: torch.Tensor = (
            torch.frombuffer(self._map, dtype=torch.uint8, offset=HEADER_BYTES, count=layout.leaves)
            if layout.leaves
            else torch.empty(0, dtype=torch.uint8)
        )
        """Where the leaves are packed to: bytes."""
        self._registration: Registration | None = None

    def __repr__(self) -> str:
        state = "whole" if self._header.is_whole else "not whole"
        return f"<SlotWriter version {self.version} [{self._layout.size >> 20} MiB, {state}]>"

    @property
    def version(self) -> int:
        return self._header.version

    @property
    def extra(self) -> bytes:
        start = self._layout.extra_offset
        return self._map[start : start + self._header.extra]

    @property
    def checksum(self) -> int:
        return self._header.checksum

    def claim(self) -> bool:
        """Keeps readers out until ``give_back``.  False if somebody reads it."""
        return _lock(self._fd, fcntl.F_WRLCK)

    def give_back(self) -> None:
        _lock(self._fd, fcntl.F_UNLCK)

    def begin(self) -> None:
        """What is in the slot is no version from now on.  It has been claimed."""
        self._set(sequence=self._header.sequence | 1)

    def finish(self, version: int, extra: bytes = b"", checksum: int = 0) -> None:
        """The slot holds a whole version.

        Raises:
            ValueError: the extra is longer than there is room.
        """
        room = self._layout.extra_room
        if len(extra) > room:
            raise ValueError(
                f"what the model has beside its tensors has grown to {len(extra)} bytes, and there is room for {room}: "
                "close both sides and connect again"
            )
        start = self._layout.extra_offset
        self._map[start : start + len(extra)] = extra
        self._set(sequence=self._header.sequence + 1, version=version, extra=len(extra), checksum=checksum)

    def register(self, registrar: Registrar, device: torch.device) -> None:
        """A GPU copies from and to it at full speed from now on."""
        if self._registration is None:
            start = self.leaves.data_ptr() - HEADER_BYTES
            self._registration = registrar.register(start, self._layout.size, device)

    def _set(self, **fields: int) -> None:
        self._header = SlotHeader(**{**self._header.__dict__, **fields})
        packed = self._header.pack()
        self._map[: len(packed)] = packed

    def close(self) -> None:
        """Lets go of it; who reads it goes on.  Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            self.leaves = torch.empty(0, dtype=torch.uint8)
            if self._registration is not None:
                self._registration.end()
            with contextlib.suppress(BufferError):  # somebody sends from it: freed with the last view
                self._map.close()


class SlotReader:
    """Another process's slot, mapped for reading only: a write to it is a fault (SIGSEGV), not an exception.

    Raises:
        TransferFailed: it cannot be opened here: its owner is gone, or lives on another machine, in another PID
            namespace or under another user.
    """

    def __init__(self, name: MemoryName, layout: SlotLayout) -> None:
        self.name = name
        self._layout = layout
        try:
            self._fd = os.open(name.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise TransferFailed(f"the sender's memory {name.path} cannot be opened: {error.strerror}") from error
        try:
            status = os.fstat(self._fd)
            if (status.st_ino, status.st_size) != (name.inode, name.size) or name.size != layout.size:
                raise TransferFailed(f"{name.path} is not the memory that its sender has announced")
            self._memory = _map_read_only(self._fd, name.size)
        except BaseException:
            os.close(self._fd)
            raise
        self.leaves: torch.Tensor = (
            torch.frombuffer(self._memory, dtype=torch.uint8, offset=HEADER_BYTES, count=layout.leaves)
            if layout.leaves
            else torch.empty(0, dtype=torch.uint8)
        )
        """The packed leaves: bytes.  To be looked at under a lease only."""
        self.is_leased = False
        self._registration: Registration | None = None

    def __repr__(self) -> str:
        return f"<SlotReader {self.name.path} [{'leased' if self.is_leased else 'free'}]>"

    def lease(self) -> SlotHeader | None:
        """Keeps the writer out until ``release``.

        Returns:
            What is in the slot; None where nothing is, or is being written: then there is no lease.
        """
        if not _lock(self._fd, fcntl.F_RDLCK):
            return None
        header = SlotHeader.unpack(self._view(0, HEADER_BYTES))
        if not header.is_whole:
            _lock(self._fd, fcntl.F_UNLCK)
            return None
        self.is_leased = True
        return header

    def release(self) -> None:
        if self.is_leased:
            self.is_leased = False
            _lock(self._fd, fcntl.F_UNLCK)

    def extra(self, header: SlotHeader) -> bytes:
        return bytes(self._view(self._layout.extra_offset, header.extra))

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

    def register(self, registrar: Registrar, device: torch.device) -> None:
        """A GPU copies from it at full speed from now on."""
        if self._registration is None:
            self._registration = registrar.register(ctypes.addressof(self._memory), self.name.size, device)

    def _view(self, offset: int, nbytes: int) -> memoryview:
        return memoryview(self._memory).cast("B")[offset : offset + nbytes]

    def close(self) -> None:
        """Gives the lease back; the memory is unmapped with the last tensor that stands in it.  Idempotent."""
        self.release()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            if self._registration is not None:
                self._registration.end()
            self.leaves = torch.empty(0, dtype=torch.uint8)
            self._memory = (ctypes.c_ubyte * 0)()


def _map_read_only(fd: int, size: int) -> Any:
    """Memory that torch takes for writable, because it has no tensors that are not; the kernel knows better."""
    mapped = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    with contextlib.suppress(OSError):
        mapped.madvise(_POPULATE_READ)
    held = numpy.frombuffer(mapped, dtype=numpy.uint8)
    memory: Any = (ctypes.c_ubyte * size).from_address(held.ctypes.data)
    memory._held = held  # which holds the mapping, as long as any tensor is made from this
    return memory


def checksum_of(leaves: torch.Tensor, extra: bytes) -> int:
    """Never 0, which says that there is none."""
    array: Any = leaves.numpy()
    return zlib.crc32(extra, zlib.crc32(array)) or 1


def _lock(fd: int, kind: int) -> bool:
    """Takes or gives back the lock on a descriptor's memory, without waiting.  False if another one is in the way."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 1, 0))
    except BlockingIOError:
        return False
    return True
