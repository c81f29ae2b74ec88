"""The memory of one slot: written by one process, read by others, freed by the kernel with the last of them.

A slot is sealed anonymous memory (memfd), found by others under ``/proc``.  Who reads it holds a *lease*, a read lock
of the kernel's on it (an open-file-description lock); who writes it holds a write lock.  So no version is overwritten
while it is read, and the lease of a process that has been killed is gone with the process::

    sender    SlotWriter ── claim, begin, pack, finish ──┐
                                                      /proc/<pid>/fd/<n>
    receiver  SlotReader ── lease, read, release ────────┘

Its leaves may also be in the memory of a GPU, with which everything else stays as it is: header and leases are here::

    slot    header │ leaf │ leaf │ … │ extra │ up to a multiple of 2 MiB
    header  magic, manifest digest, sequence, version, number of bytes of extra, checksum, where the leaves are

The sequence is odd while the slot is being written: what a sender that died has left half written is recognised by it.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import logging
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from rlinf_async._core.mapping import map_memory
from rlinf_async._core.segment import allocate_segment, seal_segment
from rlinf_async._transports.device_memory import Handle
from rlinf_async.errors import TransferFailed
from rlinf_async.weights.memory.gpus import Gpus, Registrar, Registration

logger = logging.getLogger(__name__)

HEADER_BYTES: Final = 4096
"""Room for the header; the leaves begin on a page of their own."""

_ROUNDING: Final = 2 << 20
_ALIGNMENT: Final = 256
_LEAST_EXTRA: Final = 4096
_MAGIC: Final = b"RLAslab2"
_DIGEST_BYTES: Final = 32
_HEADER: Final = struct.Struct("<8s32sQQQIB")

IN_SLOT: Final = 1
ON_GPU: Final = 2
"""Where the leaves of a version are: in the slot itself, in the memory of a GPU that goes with it, or in both."""

LEASE: Final = 0
"""Read by whoever reads the slot, written by whoever writes it."""

OPENED: Final = 1
"""Read by whoever has opened what the slot has on a GPU, whether it reads there or not."""

READ: Final = fcntl.F_RDLCK
WRITE: Final = fcntl.F_WRLCK
NONE: Final = fcntl.F_UNLCK


@dataclass(frozen=True)
class SlotHeader:
    """What stands at the head of a slot.

    Attributes:
        digest: of the manifest, 32 bytes; a shorter one ends with zeros.
        sequence: grows by one when writing begins and when it ends.
        version: of the weights.
        extra: bytes of what the model has beside its tensors.
        checksum: CRC-32 of the leaves and the extra; 0 where none was asked for.
        places: of the leaves, ``IN_SLOT`` and ``ON_GPU``.
    """

    digest: bytes
    sequence: int = 0
    version: int = 0
    extra: int = 0
    checksum: int = 0
    places: int = IN_SLOT

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", self.digest.ljust(_DIGEST_BYTES, b"\0"))

    @property
    def is_whole(self) -> bool:
        """Whether the slot holds a version, and nobody is, or died, writing to it."""
        return self.sequence > 0 and self.sequence % 2 == 0

    def pack(self) -> bytes:
        facts = (self.sequence, self.version, self.extra, self.checksum, self.places)
        return _HEADER.pack(_MAGIC, self.digest, *facts)

    @classmethod
    def unpack(cls, memory: bytes | bytearray | memoryview) -> SlotHeader:
        """
        Raises:
            ValueError: this is no slot.
        """
        magic, digest, *facts = _HEADER.unpack_from(memory)
        if magic != _MAGIC:
            raise ValueError(f"memory that begins with {magic!r} is no slot of weights")
        return cls(digest, *facts)


@dataclass(frozen=True)
class SlotLayout:
    """Where things stand in a slot.

    Args:
        leaves: bytes of the packed leaves.
        extra: bytes that the extra has at first; it may grow to four times as much.
    """

    leaves: int
    extra: int = 0

    @property
    def extra_offset(self) -> int:
        return -(-(HEADER_BYTES + self.leaves) // _ALIGNMENT) * _ALIGNMENT

    @property
    def size(self) -> int:
        """Of the whole slot."""
        needed = self.extra_offset + max(_LEAST_EXTRA, 4 * self.extra)
        return -(-needed // _ROUNDING) * _ROUNDING

    @property
    def extra_room(self) -> int:
        """Bytes that the extra may have."""
        return self.size - self.extra_offset


class MemoryName(NamedTuple):
    """Where a slot is found by other processes of this machine, as plain data.

    Attributes:
        path: of the writer's descriptor.
        inode: of the memory: a descriptor's number is used again.
        on_gpu: where the leaves are besides: a GPU's uuid and a ``Handle``; None where they are in the slot only.
    """

    path: str
    inode: int
    size: int
    on_gpu: list[Any] | None = None


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
        try:
            self._memory = map_memory(self._fd, layout.size, writable=True)
        except BaseException:
            os.close(self._fd)
            raise
        self._registration: Registration | None = None
        self._set()
        self._name = MemoryName(f"/proc/{os.getpid()}/fd/{self._fd}", os.fstat(self._fd).st_ino, layout.size)
        self.leaves: torch.Tensor = (
            torch.frombuffer(self._memory, dtype=torch.uint8, offset=HEADER_BYTES, count=layout.leaves)
            if layout.leaves
            else torch.empty(0, dtype=torch.uint8)
        )
        """Where the leaves are packed to: bytes."""
        self.name_on_gpu: list[Any] | None = None
        """Of where they can be packed to besides, once there is such a place: see ``MemoryName``."""

    def __repr__(self) -> str:
        state = "whole" if self._header.is_whole else "not whole"
        return f"<SlotWriter version {self.version} [{self._layout.size >> 20} MiB, {state}]>"

    @property
    def name(self) -> MemoryName:
        return self._name._replace(on_gpu=self.name_on_gpu if self.is_on_gpu else None)

    @property
    def version(self) -> int:
        return self._header.version

    @property
    def is_in_slot(self) -> bool:
        """Whether the leaves of its version are in the slot itself."""
        return bool(self._header.places & IN_SLOT)

    @property
    def is_on_gpu(self) -> bool:
        """Whether they are in its device leaves."""
        return bool(self._header.places & ON_GPU)

    @property
    def extra(self) -> bytes:
        start = self._layout.extra_offset
        return bytes(self._view(start, self._header.extra))

    @property
    def checksum(self) -> int:
        return self._header.checksum

    def claim(self) -> bool:
        """Keeps readers out until ``give_back``.  False if somebody reads it."""
        return lock(self._fd, WRITE)

    def give_back(self) -> None:
        lock(self._fd, NONE)

    def begin(self) -> None:
        """What is in the slot is no version from now on.  It has been claimed."""
        self._set(sequence=self._header.sequence | 1)

    def finish(self, version: int, extra: bytes = b"", checksum: int = 0, places: int = IN_SLOT) -> None:
        """The slot holds a whole version.

        Args:
            places: where its leaves are, ``IN_SLOT``, ``ON_GPU`` or both.

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
        self._view(start, len(extra))[:] = extra
        sequence = self._header.sequence + 1
        self._set(sequence=sequence, version=version, extra=len(extra), checksum=checksum, places=places)

    def filled(self) -> None:
        """The leaves, which were only on a GPU, are in the slot too; whoever reads them there goes on."""
        self._set(places=IN_SLOT | ON_GPU)

    def register(self, registrar: Registrar, device: torch.device) -> None:
        """A GPU copies from and to it at full speed from now on."""
        if self._registration is None:
            self._registration = registrar.register(self._memory, device)

    def _set(self, **fields: int) -> None:
        self._header = SlotHeader(**{**self._header.__dict__, **fields})
        packed = self._header.pack()
        self._view(0, len(packed))[:] = packed

    def _view(self, offset: int, nbytes: int) -> memoryview:
        return memoryview(self._memory).cast("B")[offset : offset + nbytes]

    def leave_gpu(self) -> int:
        """Nobody opens its leaves on a GPU from here on; returns a descriptor that tells who has, the caller's."""
        self._set(places=self._header.places & ~ON_GPU)
        return os.dup(self._fd)

    def close(self) -> None:
        """Lets go of it; who reads it goes on.  Idempotent.

        Of much memory in a thread: it is unmapped now, or with the last tensor that is sent from it.
        """
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            self.leaves = torch.empty(0, dtype=torch.uint8)
            if self._registration is not None:
                self._registration.end()  # here, and not wherever the last tensor is let go of
            self._memory = (ctypes.c_ubyte * 0)()


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
            self._fd = os.open(name.path, os.O_RDWR | os.O_CLOEXEC)  # so that ``Registrar`` may unprotect it
        except OSError as error:
            raise TransferFailed(f"the sender's memory {name.path} cannot be opened: {error.strerror}") from error
        try:
            status = os.fstat(self._fd)
            if (status.st_ino, status.st_size) != (name.inode, name.size) or name.size != layout.size:
                raise TransferFailed(f"{name.path} is not the memory that its sender has announced")
            self._memory = map_memory(self._fd, name.size, writable=False)
        except BaseException:
            os.close(self._fd)
            raise
        self.leaves: torch.Tensor = (
            torch.frombuffer(self._memory, dtype=torch.uint8, offset=HEADER_BYTES, count=layout.leaves)
            if layout.leaves
            else torch.empty(0, dtype=torch.uint8)
        )
        """The packed leaves: bytes.  To be looked at under a lease only."""
        self._lease: int | None = None
        """A descriptor of its own, whose lock it is and goes with it: to close it gives the lease back here, and not in
        a process that was forked meanwhile and looks at the same memory."""
        self._registration: Registration | None = None
        self._shut: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<SlotReader {self.name.path} [{'leased' if self.is_leased else 'free'}]>"

    @property
    def is_leased(self) -> bool:
        return self._lease is not None

    def lease(self) -> SlotHeader | None:
        """Keeps the writer out until ``release``.

        Returns:
            What is in the slot; None where nothing is, or is being written: then there is no lease.

        Raises:
            OSError: there is no file descriptor for it.
        """
        if self._lease is None:
            self._lease = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
        if not lock(self._lease, READ):
            self.release()
            return None
        header = SlotHeader.unpack(self._view(0, HEADER_BYTES))
        if not header.is_whole:
            self.release()
            return None
        return header

    def release(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            os.close(lease)

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
            self._registration = registrar.register(self._memory, device)

    @property
    def is_registered(self) -> bool:
        return self._registration is not None

    def open(self, gpus: Gpus, on_gpu: list[Any], device: torch.device) -> torch.Tensor | None:
        """Opens the leaves that are on a GPU, until ``close``.  They too are to be looked at under a lease only.

        Returns:
            Them, as bytes; None where there are none any more.

        Raises:
            Exception: they cannot be opened here.
        """
        _, *facts = on_gpu
        handle = Handle(*facts)
        if handle.nbytes != self._layout.leaves:
            raise TransferFailed(
                f"{handle.nbytes} bytes on {device} are not the memory that their sender has announced"
            )
        if not lock(self._fd, READ, OPENED):
            return None
        try:
            if not SlotHeader.unpack(self._view(0, HEADER_BYTES)).places & ON_GPU:
                lock(self._fd, NONE, OPENED)
                return None
            memory = gpus.open(handle, device)
        except BaseException:
            lock(self._fd, NONE, OPENED)
            raise
        self._shut = functools.partial(gpus.shut, handle, device)
        return memory

    def _view(self, offset: int, nbytes: int) -> memoryview:
        return memoryview(self._memory).cast("B")[offset : offset + nbytes]

    def close(self) -> None:
        """Gives the lease back; the memory is unmapped with the last tensor that stands in it.  Idempotent.

        That of a GPU is closed at once: no tensor may stand in it any more.
        """
        self.release()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if self._shut is not None:
                try:
                    self._shut()
                except Exception as error:  # the driver has gone away
                    logger.info("memory of the sender's GPU could not be let go of: %s", error)
            os.close(fd)
            if self._registration is not None:
                self._registration.end()  # here, and not wherever the last tensor is let go of
            self.leaves = torch.empty(0, dtype=torch.uint8)
            self._memory = (ctypes.c_ubyte * 0)()


def checksum_of(leaves: torch.Tensor, extra: bytes) -> int:
    """Never 0, which says that there is none."""
    array: Any = leaves.numpy()
    return zlib.crc32(extra, zlib.crc32(array)) or 1


def lock(fd: int, kind: int, what: int = LEASE) -> bool:
    """Takes or gives back a lock on a descriptor's memory, without waiting.  False if another one is in the way.

    It is the open file's, not the process's: another descriptor of the same process is in the way too.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, what, 1, 0))
    except BlockingIOError:
        return False
    return True
