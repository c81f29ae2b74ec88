"""Shared memory of one slot (memfd) and its writer: one process writes, others read, the kernel frees it with the last.

A slot is sealed anonymous memory, found by others under ``/proc``.  Its readers hold a *lease*, a read lock of the
kernel's on it (an open-file-description lock); its writer holds a write lock.  So no version is overwritten
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
import os
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from rlinf_async._core.mapping import map_memory
from rlinf_async._core.segment import allocate_segment, reserve_segment, seal_segment
from rlinf_async._transports.shared_memory import available
from rlinf_async.weights.memory.gpus import Registrar
from rlinf_async.weights.memory.slot_layout import HEADER_BYTES, IN_SLOT, ON_GPU, SlotHeader, SlotLayout

LEASE_BYTE: Final = 0
"""Locked by readers and the writer of the slot."""

OPENED_BYTE: Final = 1
"""Locked by readers that have the leaves on a GPU open, leased or not."""


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


class Slot:
    """A slot in this process: its head is mapped from the beginning, its leaves when they are first asked for."""

    def __init__(self, fd: int, layout: SlotLayout, *, writable: bool) -> None:
        self._fd = fd
        self._layout = layout
        self._writable = writable
        self._head = memoryview(map_memory(fd, layout.head, writable=writable)).cast("B")
        self._memory: Any = None
        self._leaves: torch.Tensor | None = None
        self._unregister: Callable[[], object] | None = None

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
        if self._unregister is None and self.leaves.nbytes:
            self._unregister = registrar.register(self._memory, device)

    @property
    def is_registered(self) -> bool:
        return self._unregister is not None

    def _extra(self, nbytes: int) -> memoryview:
        return self._head[HEADER_BYTES : HEADER_BYTES + nbytes]

    def close(self) -> None:
        """Lets go of it: it is unmapped now, of much memory in a thread, or with the last tensor that stands in it.

        Others go on with it.  Idempotent.
        """
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            if self._unregister is not None:
                self._unregister()  # here, and not wherever the last tensor is let go of
            self._head, self._memory, self._leaves = memoryview(b""), None, torch.empty(0, dtype=torch.uint8)


class SlotWriter(Slot):
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
        """Keeps readers out until ``give_back``.  False while it is leased."""
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
        """The leaves, which were only on a GPU, are in the slot too; those who read them there go on."""
        self._set(places=IN_SLOT | ON_GPU)

    def _set(self, **fields: Any) -> None:
        self._header = self._header._replace(**fields)
        packed = self._header.pack()
        self._head[: len(packed)] = packed

    def leave_gpu(self) -> int:
        """Its leaves on a GPU are not opened by anybody else from here on.

        Returns:
            A descriptor, the caller's: a lock on ``OPENED_BYTE`` is to be had once all have closed them.
        """
        self._set(places=self._header.places & ~ON_GPU)
        return os.dup(self._fd)


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


def lock(fd: int, kind: int, byte: int = LEASE_BYTE) -> bool:
    """Takes or gives back a lock on a slot, without waiting.  False if another one is in the way.

    It is the open file's, not the process's: another descriptor of the same process is in the way too.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0))
    except BlockingIOError:
        return False
    return True
