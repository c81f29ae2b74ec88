"""Shared memory of one slot (memfd): its layout, its locks and its writer.

A slot is sealed anonymous memory, found by others under ``/proc``.  Its readers hold a *lease*, a read lock of the
kernel's on it (an open-file-description lock); its writer holds a write lock.  So no version is overwritten
while it is read, and the lease of a process that has been killed is gone with the process::

    sender    SlotWriter ── claim, begin, pack, finish ──┐
                                                      /proc/<pid>/fd/<n>
    receiver  SlotReader ── lease, read, release ────────┘

    head    header │ extra: what the model has beside its tensors
    leaves  leaf │ leaf │ …                                          from a multiple of 2 MiB on
    header  magic, manifest digest, sequence, version, number of bytes of extra, where the leaves are

The sequence is odd while the slot is being written: what a sender that died has left half written is recognised by it.
The leaves of a version may be in the memory of a GPU, too or instead.  Here they are mapped by the first that asks for
them, and take no memory before the writer does.
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
"""Byte locked by readers and the writer of the slot."""

OPENED_BYTE: Final = 1
"""Byte locked by readers that have the leaves on a GPU open, leased or not."""

IN_SLOT: Final = 1
ON_GPU: Final = 2
"""Places of a version's leaves: the slot itself, the memory of a GPU that goes with it, or both."""

PUBLISHED: Final = 4
"""Flag of a version that may be applied; without it, the writer may withdraw the version."""

HEADER_BYTES: Final = 4096
"""Room for the header; the extra begins on a page of its own."""

_LEAVES_ALIGNMENT_BYTES: Final = 2 << 20
_MIN_HEAD_BYTES: Final = 64 << 10
_MAGIC: Final = b"RLAslab4"
_HEADER: Final = struct.Struct("<8s32sQQQB")


class SlotHeader(NamedTuple):
    """Header of a slot.

    Attributes:
        digest: of the manifest; a shorter one than 32 bytes ends with zeros.
        sequence: grows by one when writing begins and when it ends.
        version: of the weights.
        extra: size of the values beside the tensors, in bytes.
        places: places of the leaves, ``IN_SLOT`` and ``ON_GPU``; the slot has memory for leaves that are in it. And
            ``PUBLISHED``.
    """

    digest: bytes
    sequence: int = 0
    version: int = 0
    extra: int = 0
    places: int = 0

    @property
    def is_whole(self) -> bool:
        """True if the slot holds a version: no writer is at work, or has died there."""
        return self.sequence > 0 and self.sequence % 2 == 0

    def pack(self) -> bytes:
        return _HEADER.pack(_MAGIC, *self)

    @classmethod
    def unpack(cls, memory: bytes | bytearray | memoryview) -> SlotHeader:
        """Read a header.

        Raises:
            ValueError: this is no slot.
        """
        magic, *facts = _HEADER.unpack_from(memory)
        if magic != _MAGIC:
            raise ValueError(f"memory that begins with {magic!r} is no slot of weights")
        return cls(*facts)


class SlotLayout(NamedTuple):
    """Layout of a slot in bytes.

    Attributes:
        leaves: size of the packed leaves.
        extra: initial size of the extra; it may grow to four times as much.
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
        """Size of the whole slot; only the head has memory at first."""
        return self.leaves_offset + _round_up(self.leaves, _LEAVES_ALIGNMENT_BYTES)

    def check_room(self, label: str, slots: int = 1) -> None:
        """Check the available memory.

        Raises:
            MemoryError: this machine, or this container, has less memory left than so many slots take.
        """
        if slots * self.size > (left := available()):
            count = "one slot" if slots == 1 else f"{slots} slots"
            raise MemoryError(
                f"weights of '{label}' take {count} of {self.size / (1 << 20):.0f} MiB, and "
                f"{left / (1 << 20):.0f} MiB of memory are available: take fewer slots="
            )


class MemoryName(NamedTuple):
    """Name by which other processes of this machine find a slot, as plain data.

    Attributes:
        path: of the writer's descriptor.
        inode: of the memory: a descriptor's number is used again.
        on_gpu: further place of the leaves: a GPU's uuid and a ``Handle``; None if they are in the slot only.
    """

    path: str
    inode: int
    size: int
    on_gpu: list[Any] | None = None


class Slot:
    """A slot in this process: its head is mapped at once, its leaves at their first use."""

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
        """The packed leaves, as bytes."""
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
        """The leaves as tensors, in the order of the manifest."""
        if self._views is None:
            self._views = self._manifest.views(self.leaves)
        return self._views

    def register(self, registrar: Registrar, device: torch.device) -> None:
        """Register it for copies by a GPU at full speed."""
        if self._unregister is None and self.leaves.nbytes:
            self._unregister = registrar.register(self._memory, device)

    @property
    def is_registered(self) -> bool:
        return self._unregister is not None

    def _extra(self, nbytes: int) -> memoryview:
        return self._head[HEADER_BYTES : HEADER_BYTES + nbytes]

    def close(self) -> None:
        """Close it: it is unmapped now, with much memory in a thread, or with the last tensor that is mapped to it.

        Other processes go on with it. Idempotent.
        """
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            if self._unregister is not None:
                self._unregister()  # here, and not wherever the last tensor is let go of
            self._head, self._memory, self._views = memoryview(b""), None, None
            self._leaves = torch.empty(0, dtype=torch.uint8)


class SlotWriter(Slot):
    """A slot of this process.

    The memory of its leaves is taken at the first use of ``leaves``, all at once: packing meets no page fault.

    Attributes:
        name_on_gpu: further place for its leaves, once there is one: see ``MemoryName``.

    Raises, there too:
        MemoryError, OSError: there is no memory, or no file descriptor, for it.
    """

    def __init__(self, manifest: Manifest, layout: SlotLayout, label: str = "weights") -> None:
        self._label = label
        self._header = SlotHeader(manifest.digest)
        self._uses: list[None] = []  # one for each ``pin``: to append and to pop takes no lock
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
        """True if it holds a complete version."""
        return self._header.is_whole

    @property
    def is_in_slot(self) -> bool:
        """True if the leaves of its version are in the slot itself."""
        return bool(self._header.places & IN_SLOT)

    @property
    def is_on_gpu(self) -> bool:
        """True if they are in the memory of a GPU."""
        return bool(self._header.places & ON_GPU)

    @property
    def extra(self) -> bytes:
        return bytes(self._extra(self._header.extra))

    def pin(self) -> None:
        """Keep it from being written again until ``unpin``, which is called once for each call."""
        self._uses.append(None)

    def unpin(self) -> None:
        self._uses.pop()

    @property
    def is_pinned(self) -> bool:
        return bool(self._uses)

    def lock(self) -> bool:
        """Keep readers out until ``unlock``. Return False while it is leased."""
        return lock(self._fd, fcntl.F_WRLCK)

    def unlock(self) -> None:
        lock(self._fd, fcntl.F_UNLCK)

    def begin(self) -> None:
        """Mark the locked slot as being written: it holds no version."""
        self._set(sequence=self._header.sequence | 1)

    def finish(self, version: int, extra: bytes = b"", places: int = IN_SLOT) -> None:
        """Mark the slot as holding a whole version.

        Args:
            places: places of its leaves, ``IN_SLOT``, ``ON_GPU`` or both.

        Raises:
            ValueError: the extra is longer than its room.
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
        """Note that leaves on a GPU are in the slot too; readers go on."""
        self._set(places=self._header.places | IN_SLOT)

    def publish(self) -> None:
        """Have readers apply the version, even one that was told of an earlier one in this slot."""
        self._set(places=self._header.places | PUBLISHED)

    def _set(self, **fields: Any) -> None:
        self._header = self._header._replace(**fields)
        packed = self._header.pack()
        self._head[: len(packed)] = packed

    def leave_gpu(self) -> int:
        """Keep others from opening its leaves on a GPU.

        Returns:
            A descriptor for the caller: its lock on ``OPENED_BYTE`` is free once all have closed the leaves.
        """
        self._set(places=self._header.places & ~ON_GPU)
        return os.dup(self._fd)


def lock(fd: int, kind: int, byte: int = LEASE_BYTE) -> bool:
    """Take or release a lock on a slot, without waiting. Return False if another one is in the way.

    The lock belongs to the open file, not to the process: another descriptor of the same process is in the way too.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0))
    except BlockingIOError:
        return False
    return True


def _round_up(nbytes: int, to: int) -> int:
    return -(-nbytes // to) * to
