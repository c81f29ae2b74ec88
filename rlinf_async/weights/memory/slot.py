"""Memory of one slot: written by one process, read by others, freed by the kernel with the last of them.

A slot is sealed anonymous memory (memfd), found by others under ``/proc``.  Who reads it holds a *lease*, a read lock
of the kernel's on it (an open-file-description lock); who writes it holds a write lock.  So no version is overwritten
while it is read, and the lease of a process that has been killed is gone with the process::

    sender    SlotWriter ── claim, begin, pack, finish ──┐
                                                      /proc/<pid>/fd/<n>
    receiver  SlotReader ── lease, read, release ────────┘

    head    header │ extra: what the model has beside its tensors
    leaves  leaf │ leaf │ …                                          from a multiple of 2 MiB on
    header  magic, manifest digest, sequence, version, number of bytes of extra, checksum, where the leaves are

The sequence is odd while the slot is being written: what a sender that died has left half written is recognised by it.
The leaves of a version may be in the memory of a GPU, too or instead.  Here they are mapped by the first that asks for
them, and take no memory before the writer does.
"""

from __future__ import annotations

import fcntl
import functools
import logging
import os
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from rlinf_async._core.mapping import map_memory
from rlinf_async._core.segment import allocate_segment, reserve_segment, seal_segment
from rlinf_async._transports.device_memory import Handle
from rlinf_async._transports.shared_memory import available
from rlinf_async.errors import TransferFailed
from rlinf_async.weights.memory.gpus import Gpus, Registrar, Registration

logger = logging.getLogger(__name__)

HEADER_BYTES: Final = 4096
"""Room for the header; the extra begins on a page of its own."""

_ROUNDING: Final = 2 << 20
_LEAST_HEAD: Final = 64 << 10
_MAGIC: Final = b"RLAslab3"
_HEADER: Final = struct.Struct("<8s32sQQQIB")

IN_SLOT: Final = 1
ON_GPU: Final = 2
"""Where the leaves of a version are: in the slot itself, in the memory of a GPU that goes with it, or in both."""

_LEASE: Final = 0
"""Read by whoever reads the slot, written by whoever writes it."""

OPENED: Final = 1
"""Read by whoever has opened what the slot has on a GPU, whether it reads there or not."""


class SlotHeader(NamedTuple):
    """What stands at the head of a slot.

    Attributes:
        digest: of the manifest; a shorter one than 32 bytes ends with zeros.
        sequence: grows by one when writing begins and when it ends.
        version: of the weights.
        extra: bytes of what the model has beside its tensors.
        checksum: CRC-32 of the leaves and the extra; 0 where none was asked for.
        places: of the leaves, ``IN_SLOT`` and ``ON_GPU``; where they are in the slot, it has memory for them.
    """

    digest: bytes
    sequence: int = 0
    version: int = 0
    extra: int = 0
    checksum: int = 0
    places: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether the slot holds a version, and nobody is, or died, writing to it."""
        return self.sequence > 0 and self.sequence % 2 == 0

    def pack(self) -> bytes:
        return _HEADER.pack(_MAGIC, *self)

    @classmethod
    def unpack(cls, memory: bytes | bytearray | memoryview) -> SlotHeader:
        """
        Raises:
            ValueError: this is no slot.
        """
        magic, *facts = _HEADER.unpack_from(memory)
        if magic != _MAGIC:
            raise ValueError(f"memory that begins with {magic!r} is no slot of weights")
        return cls(*facts)


class SlotLayout(NamedTuple):
    """Where things stand in a slot.

    Attributes:
        leaves: bytes of the packed leaves.
        extra: bytes that the extra has at first; it may grow to four times as much.
    """

    leaves: int
    extra: int = 0

    @property
    def head(self) -> int:
        """Bytes of the head."""
        return max(_LEAST_HEAD, _rounded(HEADER_BYTES + 4 * self.extra, HEADER_BYTES))

    @property
    def extra_room(self) -> int:
        """Bytes that the extra may have."""
        return self.head - HEADER_BYTES

    @property
    def leaves_offset(self) -> int:
        return _rounded(self.head, _ROUNDING)

    @property
    def size(self) -> int:
        """Of the whole slot, of which there is memory for the head only at first."""
        return self.leaves_offset + _rounded(self.leaves, _ROUNDING)


def _rounded(nbytes: int, to: int) -> int:
    return -(-nbytes // to) * to


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


class _Slot:
    """A slot in this process: its head is mapped from the beginning, its leaves once somebody asks for them."""

    def __init__(self, fd: int, layout: SlotLayout, *, writable: bool) -> None:
        self._fd = fd
        self._layout = layout
        self._writable = writable
        self._head = memoryview(map_memory(fd, layout.head, writable=writable)).cast("B")
        self._memory: Any = None
        self._leaves: torch.Tensor | None = None
        self._registration: Registration | None = None

    @property
    def nbytes(self) -> int:
        """Of the leaves."""
        return self._layout.leaves

    @property
    def leaves(self) -> torch.Tensor:
        """The packed leaves, as bytes."""
        if self._leaves is None:
            self._leaves = self._map()
        return self._leaves

    def _map(self) -> torch.Tensor:
        if not self.nbytes:
            return torch.empty(0, dtype=torch.uint8)
        self._memory = map_memory(self._fd, self.nbytes, self._layout.leaves_offset, writable=self._writable)
        return torch.frombuffer(self._memory, dtype=torch.uint8)

    def register(self, registrar: Registrar, device: torch.device) -> None:
        """A GPU copies from it, or to it, at full speed from now on."""
        if self._registration is None and self.leaves.nbytes:
            self._registration = registrar.register(self._memory, device)

    @property
    def is_registered(self) -> bool:
        return self._registration is not None

    def _extra(self, nbytes: int) -> memoryview:
        return self._head[HEADER_BYTES : HEADER_BYTES + nbytes]

    def close(self) -> None:
        """Lets go of it: it is unmapped now, of much memory in a thread, or with the last tensor that stands in it.

        Others go on with it.  Idempotent.
        """
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            if self._registration is not None:
                self._registration.end()  # here, and not wherever the last tensor is let go of
            self._head, self._memory, self._leaves = memoryview(b""), None, torch.empty(0, dtype=torch.uint8)


class SlotWriter(_Slot):
    """One slot, as its owner has it.

    The memory of its leaves is taken by the first that asks for ``leaves``, all at once: packing meets no page fault.

    Raises, there too:
        MemoryError, OSError: there is no memory, or no file descriptor, for it.
    """

    def __init__(self, layout: SlotLayout, digest: bytes, label: str = "weights") -> None:
        self._label = label
        self._header = SlotHeader(digest)
        fd = allocate_segment(layout.head, f"rlinf-{label}"[:200])
        try:
            os.ftruncate(fd, layout.size)
            seal_segment(fd)
            super().__init__(fd, layout, writable=True)
        except BaseException:
            os.close(fd)
            raise
        self._set()
        self._name = MemoryName(f"/proc/{os.getpid()}/fd/{fd}", os.fstat(fd).st_ino, layout.size)
        self.name_on_gpu: list[Any] | None = None
        """Of where its leaves can be packed to besides, once there is such a place: see ``MemoryName``."""

    def __repr__(self) -> str:
        state = "whole" if self._header.is_whole else "not whole"
        return f"<SlotWriter version {self.version} [{self._layout.size >> 20} MiB, {state}]>"

    def _map(self) -> torch.Tensor:
        check_room(self._label, self._layout)
        reserve_segment(self._fd, self._layout.leaves_offset, self.nbytes)
        return super()._map()

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
        """Whether they are in the memory of a GPU."""
        return bool(self._header.places & ON_GPU)

    @property
    def extra(self) -> bytes:
        return bytes(self._extra(self._header.extra))

    @property
    def checksum(self) -> int:
        return self._header.checksum

    def claim(self) -> bool:
        """Keeps readers out until ``give_back``.  False if somebody reads it."""
        return lock(self._fd, fcntl.F_WRLCK)

    def give_back(self) -> None:
        lock(self._fd, fcntl.F_UNLCK)

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
        self._extra(len(extra))[:] = extra
        sequence = self._header.sequence + 1
        self._set(sequence=sequence, version=version, extra=len(extra), checksum=checksum, places=places)

    def filled(self) -> None:
        """The leaves, which were only on a GPU, are in the slot too; whoever reads them there goes on."""
        self._set(places=IN_SLOT | ON_GPU)

    def _set(self, **fields: int) -> None:
        self._header = self._header._replace(**fields)
        packed = self._header.pack()
        self._head[: len(packed)] = packed

    def leave_gpu(self) -> int:
        """Nobody opens its leaves on a GPU from here on; returns a descriptor that tells who has, the caller's."""
        self._set(places=self._header.places & ~ON_GPU)
        return os.dup(self._fd)


class SlotReader(_Slot):
    """Another process's slot, mapped for reading only: a write to it is a fault (SIGSEGV), not an exception.

    Its leaves are to be looked at under a lease only, and asked for once the header says that they are in the slot.

    Raises:
        TransferFailed: it cannot be opened here: its owner is gone, or lives on another machine, in another PID
            namespace or under another user.
    """

    def __init__(self, name: MemoryName, layout: SlotLayout) -> None:
        self.name = name
        try:
            fd = os.open(name.path, os.O_RDWR | os.O_CLOEXEC)  # so that ``Registrar`` may unprotect it
        except OSError as error:
            raise TransferFailed(f"the sender's memory {name.path} cannot be opened: {error.strerror}") from error
        try:
            status = os.fstat(fd)
            if (status.st_ino, status.st_size) != (name.inode, name.size) or name.size != layout.size:
                raise TransferFailed(f"{name.path} is not the memory that its sender has announced")
            super().__init__(fd, layout, writable=False)
        except BaseException:
            os.close(fd)
            raise
        self._lease: int | None = None
        """A descriptor of its own, whose lock it is and goes with it: to close it gives the lease back here, and not in
        a process that was forked meanwhile and looks at the same memory."""
        self._shut: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<SlotReader {self.name.path}>"

    @property
    def header(self) -> SlotHeader:
        """What is true of it as long as it is leased, and may change at any time otherwise."""
        return SlotHeader.unpack(self._head)

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

    def open(self, gpus: Gpus, on_gpu: list[Any], device: torch.device) -> torch.Tensor | None:
        """Opens the leaves that are on a GPU, until ``close``.  They too are to be looked at under a lease only.

        Returns:
            Them, as bytes; None where there are none any more.

        Raises:
            Exception: they cannot be opened here.
        """
        _, *facts = on_gpu
        handle = Handle(*facts)
        if handle.nbytes != self.nbytes:
            raise TransferFailed(
                f"{handle.nbytes} bytes on {device} are not the memory that their sender has announced"
            )
        if not lock(self._fd, fcntl.F_RDLCK, OPENED):
            return None
        try:
            if not self.header.places & ON_GPU:
                lock(self._fd, fcntl.F_UNLCK, OPENED)
                return None
            memory = gpus.open(handle, device)
        except BaseException:
            lock(self._fd, fcntl.F_UNLCK, OPENED)
            raise
        self._shut = functools.partial(gpus.shut, handle, device)
        return memory

    def close(self) -> None:
        """As of a slot; gives the lease back, and closes the memory of a GPU: no tensor may stand in that any more."""
        self.release()
        shut, self._shut = self._shut, None
        if shut is not None:
            try:
                shut()
            except Exception as error:  # the driver has gone away
                logger.info("memory of the sender's GPU could not be let go of: %s", error)
        super().close()


def check_room(label: str, layout: SlotLayout, slots: int = 1) -> None:
    """
    Raises:
        MemoryError: this machine, or this container, has less memory left than so many slots take.
    """
    if slots * layout.size > (left := available()):
        count = "one slot" if slots == 1 else f"{slots} slots"
        raise MemoryError(
            f"weights of '{label}' take {count} of {layout.size / (1 << 20):.0f} MiB, and "
            f"{left / (1 << 20):.0f} MiB of memory are available: take fewer slots="
        )


def checksum_of(leaves: torch.Tensor, extra: bytes) -> int:
    """Never 0, which says that there is none."""
    array: Any = leaves.numpy()
    return zlib.crc32(extra, zlib.crc32(array)) or 1


def lock(fd: int, kind: int, what: int = _LEASE) -> bool:
    """Takes or gives back a lock on a descriptor's memory, without waiting.  False if another one is in the way.

    It is the open file's, not the process's: another descriptor of the same process is in the way too.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, what, 1, 0))
    except BlockingIOError:
        return False
    return True
