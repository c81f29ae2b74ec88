"""Layout of a slot in bytes, and its header: plain state."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

HEADER_BYTES: Final = 4096
"""Room for the header; the extra begins on a page of its own."""

_ROUNDING: Final = 2 << 20
_LEAST_HEAD: Final = 64 << 10
_MAGIC: Final = b"RLAslab3"
_HEADER: Final = struct.Struct("<8s32sQQQIB")

IN_SLOT: Final = 1
ON_GPU: Final = 2
"""Where the leaves of a version are: in the slot itself, in the memory of a GPU that goes with it, or in both."""


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
        """Whether the slot holds a version, and no writer is, or has died, at work."""
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
