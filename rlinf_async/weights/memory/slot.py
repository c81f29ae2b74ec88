"""Shared memory of one slot (memfd): its layout, locks and writer.

A slot is sealed anonymous memory, which other processes find under ``/proc``. Its readers hold a *lease*, a kernel read
lock on the slot (an open-file-description lock); its writer holds a write lock. So no version is overwritten while it
is being read, and the kernel releases a killed process's lease::

    sender    SlotWriter ── claim, begin, pack, finish ──┐
                                                      /proc/<pid>/fd/<n>
    receiver  SlotReader ── lease, read, release ────────┘

    head    header │ extra: values of the model other than tensors
    leaves  leaf │ leaf │ …                                          starting at a multiple of 2 MiB
    header  magic, manifest digest, sequence, version, size of extra in bytes, places of the leaves

The sequence is odd while the slot is being written, which also reveals a slot that a dead sender left half written. A
version's leaves may also, or only, be in GPU memory. Leaves in the slot are mapped at first use, and use no memory
until they are written.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from rlinf_async._core.mapping import map_memory
from rlinf_async._core.segment import allocate_segment, reserve_segment, seal_segment
from rlinf_async._transports.shared_memory import available
from rlinf_async.weights.memory.gpus import Registrar
from rlinf_async.weights.model.manifest import Manifest
from rlinf_async.weights.model.param_tree import Path

Views: TypeAlias = dict[Path, torch.Tensor]

LEASE_BYTE: Final = 0
"""Byte on which the slot's readers and its writer hold their locks."""

OPENED_BYTE: Final = 1
"""Byte locked by readers that have the GPU leaves open, with or without a lease."""

IN_SLOT: Final = 1
ON_GPU: Final = 2
"""Places of a version's leaves: the slot itself, the slot's GPU memory, or both."""

PUBLISHED: Final = 4
"""Flag of a version that may be applied; the writer may still withdraw a version without it."""

HEADER_BYTES: Final = 4096
"""Space for the header; the extra begins on a separate page."""

_LEAVES_ALIGNMENT_BYTES: Final = 2 << 20
_MIN_HEAD_BYTES: Final = 64 << 10
_MAGIC: Final = b"RLAslab4"
_HEADER: Final = struct.Struct("<8s32sQQQB")


class SlotHeader(NamedTuple):
    """The header of a slot.

    Attributes:
        digest: digest of the manifest, padded with zeros to 32 bytes.
        sequence: incremented when writing begins and when it ends.
        version: version of the weights.
        extra: size in bytes of the values other than tensors.
        places: places of the leaves, ``IN_SLOT`` and ``ON_GPU``, with the flag ``PUBLISHED``; leaves that are not in
            the slot use none of its memory.
    """

    digest: bytes
    sequence: int = 0
    version: int = 0
    extra: int = 0
    places: int = 0

    @property
    def is_whole(self) -> bool:
        """True if the slot holds a complete version: no writer is active, and none died while writing."""
        return self.sequence > 0 and self.sequence % 2 == 0

    def pack(self) -> bytes:
        return _HEADER.pack(_MAGIC, *self)

    @classmethod
    def unpack(cls, memory: bytes | bytearray | memoryview) -> SlotHeader:
        """Read a header.

        Raises:
            ValueError: the memory is not a slot.
        """
        magic, *facts = _HEADER.unpack_from(memory)
        if magic != _MAGIC:
            raise ValueError(f"memory that begins with {magic!r} is no slot of weights")
        return cls(*facts)


class SlotLayout(NamedTuple):
    """The layout of a slot, in bytes.

    Attributes:
        leaves: size of the packed leaves.
        extra: initial size of the extra, which may grow to four times this size.
    """

    leaves: int
    extra: int = 0

    @property
    def head(self) -> int:
        return max(_MIN_HEAD_BYTES, _round_up(HEADER_BYTES + 4 * self.extra, HEADER_BYTES))

    @property
    def extra_room(self) -> int:
        return self.head - HEADER_BYTES

    @property
    def leaves_offset(self) -> int:
        return _round_up(self.head, _LEAVES_ALIGNMENT_BYTES)

    @property
    def size(self) -> int:
        """Size of the whole slot; at first, only its head has memory."""
        return self.leaves_offset + _round_up(self.leaves, _LEAVES_ALIGNMENT_BYTES)

    def check_room(self, label: str, slots: int = 1) -> None:
        """Check the available memory.

        Raises:
            MemoryError: this machine or container has too little memory for that many slots.
        """
        if slots * self.size > (left := available()):
            count = "one slot" if slots == 1 else f"{slots} slots"
            raise MemoryError(
                f"weights of '{label}' take {count} of {self.size / (1 << 20):.0f} MiB, and "
                f"{left / (1 << 20):.0f} MiB of memory are available: take fewer slots="
            )


class MemoryName(NamedTuple):
    """The name by which this machine's other processes find a slot, as plain data.

    Attributes:
        path: path of the writer's descriptor.
        inode: inode of the memory, needed because descriptor numbers are reused.
        on_gpu: the GPU's uuid and a ``Handle`` with which to open the leaves there; None if they are only in the slot.
    """

    path: str
    inode: int
    size: int
    on_gpu: list[Any] | None = None


class Slot:
    """A slot in this process; its head is mapped immediately, and its leaves are mapped at first use."""

    def __init__(self, fd: int, manifest: Manifest, layout: SlotLayout, *, writable: bool) -> None:
        self._fd = fd
        self._manifest = manifest
        self._layout = layout
        self._writable = writable
        self._head = memoryview(map_memory(fd, layout.head, writable=writable)).cast("B")
        self._memory: Any = None
        self._leaves: torch.Tensor | None = None
        self._views: Views | None = None
        self._unregister: Callable[[], object] | None = None

    @property
    def nbytes(self) -> int:
        """Size of the leaves."""
        return self._layout.leaves

    @property
    def leaves(self) -> torch.Tensor:
        """The packed leaves as bytes."""
        if self._leaves is None:
            self._leaves = self._map()
        return self._leaves

    def _map(self) -> torch.Tensor:
        if not self.nbytes:
            return torch.empty(0, dtype=torch.uint8)
        self._memory = map_memory(self._fd, self.nbytes, self._layout.leaves_offset, writable=self._writable)
        return torch.frombuffer(self._memory, dtype=torch.uint8)

    @property
    def views(self) -> Views:
        """The leaves as tensors, in the manifest's order."""
        if self._views is None:
            self._views = self._manifest.views(self.leaves)
        return self._views

    def register(self, registrar: Registrar, device: torch.device) -> None:
        """Register the slot, so that a GPU can copy at full speed."""
        if self._unregister is None and self.leaves.nbytes:
            self._unregister = registrar.register(self._memory, device)

    @property
    def is_registered(self) -> bool:
        return self._unregister is not None

    def _extra(self, nbytes: int) -> memoryview:
        return self._head[HEADER_BYTES : HEADER_BYTES + nbytes]

    def close(self) -> None:
        """Close the slot. It is unmapped immediately, or once the last tensor in it is dropped; this takes time if it
        is large.

        Other processes can keep using it. Idempotent.
        """
        if (fd := self._leave()) >= 0:
            os.close(fd)

    def _leave(self) -> int:
        # The caller then owns the descriptor that this returns.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if self._unregister is not None:
                self._unregister()  # not later, in whatever thread drops the last tensor
            self._head, self._memory, self._views = memoryview(b""), None, None
            self._leaves = torch.empty(0, dtype=torch.uint8)
        return fd


class SlotWriter(Slot):
    """A slot that this process writes to.

    The first use of ``leaves`` allocates all their memory at once, so that packing causes no page faults.

    Attributes:
        name_on_gpu: name of its leaves on a GPU, once allocated; see ``MemoryName``.

    Raises, also at the first use of ``leaves``:
        MemoryError, OSError: there is not enough memory, or no free file descriptor.
    """

    def __init__(self, manifest: Manifest, layout: SlotLayout, label: str = "weights") -> None:
        self._label = label
        self._header = SlotHeader(manifest.digest)
        # One entry per ``pin``, because list append and pop need no lock.
        self._uses: list[None] = []
        self.name_on_gpu: list[Any] | None = None
        fd = allocate_segment(layout.head, f"rlinf-{label}"[:200])
        try:
            os.ftruncate(fd, layout.size)
            seal_segment(fd)
            super().__init__(fd, manifest, layout, writable=True)
        except BaseException:
            os.close(fd)
            raise
        self._set()
        self._name = MemoryName(f"/proc/{os.getpid()}/fd/{fd}", os.fstat(fd).st_ino, layout.size)

    def __repr__(self) -> str:
        state = "whole" if self._header.is_whole else "not whole"
        return f"<SlotWriter version {self.version} [{self._layout.size >> 20} MiB, {state}]>"

    def _map(self) -> torch.Tensor:
        self._layout.check_room(self._label)
        reserve_segment(self._fd, self._layout.leaves_offset, self.nbytes)
        return super()._map()

    @property
    def name(self) -> MemoryName:
        return self._name._replace(on_gpu=self.name_on_gpu if self.is_on_gpu else None)

    @property
    def version(self) -> int:
        return self._header.version

    @property
    def is_whole(self) -> bool:
        """True if the slot holds a complete version."""
        return self._header.is_whole

    @property
    def is_in_slot(self) -> bool:
        """True if its version's leaves are in the slot itself."""
        return bool(self._header.places & IN_SLOT)

    @property
    def is_on_gpu(self) -> bool:
        """True if its version's leaves are in GPU memory."""
        return bool(self._header.places & ON_GPU)

    @property
    def extra(self) -> bytes:
        return bytes(self._extra(self._header.extra))

    def pin(self) -> None:
        """Keep the slot from being rewritten. Each call must be balanced by a call to ``unpin``."""
        self._uses.append(None)

    def unpin(self) -> None:
        self._uses.pop()

    @property
    def is_pinned(self) -> bool:
        return bool(self._uses)

    def lock(self) -> bool:
        """Keep readers out until ``unlock``. Return False if the slot is leased."""
        return lock(self._fd, fcntl.F_WRLCK)

    def unlock(self) -> None:
        lock(self._fd, fcntl.F_UNLCK)

    def begin(self) -> None:
        """Mark the locked slot as being written, so that it holds no version."""
        self._set(sequence=self._header.sequence | 1)

    def finish(self, version: int, extra: bytes = b"", places: int = IN_SLOT) -> None:
        """Mark the slot as holding a complete version.

        Args:
            places: places of the leaves, ``IN_SLOT``, ``ON_GPU`` or both.

        Raises:
            ValueError: the extra does not fit into its space.
        """
        room = self._layout.extra_room
        if len(extra) > room:
            raise ValueError(
                f"what the model has beside its tensors has grown to {len(extra)} bytes, and there is room for {room}: "
                "close both sides and connect again"
            )
        self._extra(len(extra))[:] = extra
        sequence = self._header.sequence + 1
        self._set(sequence=sequence, version=version, extra=len(extra), places=places)

    def filled(self) -> None:
        """Record that GPU leaves are now also in the slot; readers are not interrupted."""
        self._set(places=self._header.places | IN_SLOT)

    def publish(self) -> None:
        """Allow readers to apply the version, even a reader that was told about an earlier version in this slot."""
        self._set(places=self._header.places | PUBLISHED)

    def _set(self, **fields: Any) -> None:
        self._header = self._header._replace(**fields)
        packed = self._header.pack()
        self._head[: len(packed)] = packed

    def leave_gpu(self) -> int:
        """Close the slot, and keep other processes from opening its leaves on a GPU.

        Returns:
            Its descriptor, which the caller then owns; its lock on ``OPENED_BYTE`` is free once all processes have
            closed the leaves.
        """
        self._set(places=self._header.places & ~ON_GPU)
        return self._leave()


def lock(fd: int, kind: int, byte: int = LEASE_BYTE) -> bool:
    """Take or release a lock on a slot without waiting. Return False if another lock conflicts.

    The lock belongs to the open file, not to the process, so locks through two descriptors of one process conflict,
    too.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0))
    except BlockingIOError:
        return False
    return True


def _round_up(nbytes: int, to: int) -> int:
    return -(-nbytes // to) * to
