"""How a version of the weights lies in memory, and which memory the next version may take.

A *slab* is a few slots, each of them one piece of shared memory: a header, the packed leaves as the manifest says, and
what a model has beside its tensors::

    slot    header │ leaf │ leaf │ … │ extra │ up to a multiple of 2 MiB
    header  magic, manifest digest, sequence, version, number of bytes of extra, checksum, where the leaves are

The sequence is odd while the slot is being written: what a sender that died has left half written is recognised by it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

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


class SlotBook:
    """What the writer knows of its slots: which version each holds, and in which version each leaf of it changed.

    A version that names only some leaves takes the others from the latest one, as far as the slot has not got them
    already.
    """

    def __init__(self, slots: int, leaves: int) -> None:
        if slots < 2:
            raise ValueError(f"a slab of {slots} slots cannot be read while it is written: it takes 2 or more")
        self._everything = frozenset(range(leaves))
        self._versions = [0] * slots
        self._changed = [0] * leaves
        """In which version each leaf has changed last."""
        self._holds: list[list[int] | None] = [None] * slots
        """Of each slot and leaf, the version of it that is there; None where nothing is known of the slot."""
        self.latest: int | None = None
        """The slot with the latest version."""

    def candidates(self) -> list[int]:
        """Slots that may be written to, that with the oldest version first; whether they are read is for others to say.

        The latest version is never among them: it stays whole until there is a newer one.
        """
        slots = [slot for slot in range(len(self._versions)) if slot != self.latest]
        return sorted(slots, key=lambda slot: self._versions[slot])

    def missing(self, slot: int, given: Collection[int] | None) -> list[int]:
        """Leaves that the slot has to get from the latest version, if the given ones are written to it.

        Args:
            given: indices of leaves; None: all.

        Raises:
            ValueError: there is no version to take them from.
        """
        rest = [] if given is None else sorted(self._everything - set(given))
        if not rest:
            return []
        if self.latest is None:
            raise ValueError("the first version has to have every leaf: there is nothing to take the others from")
        holds = self._holds[slot]
        return rest if holds is None else [leaf for leaf in rest if holds[leaf] != self._changed[leaf]]

    def begin(self, slot: int) -> None:
        """Writing begins: what is in the slot is not known until it has ended."""
        if slot == self.latest:
            raise ValueError(f"slot {slot} holds the latest version and cannot be written to")
        self._holds[slot] = None

    def finish(self, slot: int, version: int, given: Collection[int] | None) -> None:
        """The slot holds a new version, with the given leaves new and the others those of the version before."""
        for leaf in self._everything if given is None else given:
            self._changed[leaf] = version
        self._holds[slot] = self._changed.copy()
        self._versions[slot] = version
        self.latest = slot

    def withdraw(self, before: int | None) -> None:
        """The latest version never was one: that before it is the latest again, where its slot is known."""
        slot, self.latest = self.latest, before
        if slot is not None:
            self.replace(slot)

    def replace(self, slot: int) -> None:
        """The slot has got new memory, in which nothing is."""
        self.begin(slot)
        self._versions[slot] = 0
