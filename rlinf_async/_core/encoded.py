"""Memory layout of an encoded value: index, pickled head, aligned out-of-band buffers; writes and splits bodies.

A body is either the byte 0 and one pickle; or the byte 1, an index, a head, and the memory to which the head refers,
with each buffer at a multiple of 64 bytes from the start of the body.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from typing import Any, Final

# Smaller buffers are copied instead of viewed, because a small array would keep a whole segment alive.
COPY_MAX_BYTES: Final = 64 * 1024

_ALIGNMENT_BYTES: Final = 64
_ZEROS: Final = bytes(_ALIGNMENT_BYTES)
# Fields: 1, number of buffers, size of the pickle. The size of each buffer follows.
_INDEX: Final = struct.Struct("<B3xIQ")
_INDEX_OF_ONE: Final = struct.Struct("<B3xIQQ")


def plain_body(value: Any) -> bytes:
    return b"\0" + pickle.dumps(value, 5)


class OutOfBandBytes(bytearray):
    """Empty placeholder in a ``PickleBuffer``; its ``memory``, on another device, replaces it among the buffers."""

    __slots__ = ("memory",)

    def __init__(self, memory: Any) -> None:
        super().__init__()
        self.memory = memory


class Encoded:
    """An encoded value: one pickle (``head``), and ``buffers``, the flat and contiguous memory to which it refers.

    The parts are the value's own memory, not copies, so write them before the value may change. The caller must
    replace memory that is on other devices.
    """

    __slots__ = ("_chunks", "buffers", "nbytes")

    def __init__(self, chunks: Sequence[bytes], buffers: Sequence[memoryview] = ()) -> None:
        self._chunks = chunks
        self.buffers = buffers
        if not buffers:
            self.nbytes = 1 + (len(chunks[0]) if len(chunks) == 1 else sum(map(len, chunks)))
            return
        self.nbytes = _INDEX.size + 8 * len(buffers) + sum(map(len, chunks))
        for view in buffers:
            self.nbytes += -self.nbytes % _ALIGNMENT_BYTES + view.nbytes

    @property
    def head(self) -> bytes:
        return b"".join(self._chunks)

    def replace(self, buffers: Sequence[memoryview]) -> Encoded:
        return Encoded(self._chunks, buffers)

    def parts(self) -> list[bytes | memoryview]:
        """Return the body in pieces, including padding; together they have ``nbytes`` bytes."""
        if not self.buffers:
            return [b"\0", *self._chunks]
        sizes = [view.nbytes for view in self.buffers]
        head_size = sum(map(len, self._chunks))
        index = _INDEX.pack(1, len(sizes), head_size) + struct.pack(f"<{len(sizes)}Q", *sizes)
        parts: list[bytes | memoryview] = [index, *self._chunks]
        end = len(index) + head_size
        for view in self.buffers:
            padding = -end % _ALIGNMENT_BYTES
            if padding:
                parts.append(_ZEROS[:padding])
            parts.append(view)
            end += padding + view.nbytes
        return parts

    def to_bytes(self) -> bytes:
        if len(self.buffers) == 1 and len(self._chunks) == 1:
            (head,), (view,) = self._chunks, self.buffers
            size = _INDEX_OF_ONE.size + len(head)
            index = _INDEX_OF_ONE.pack(1, 1, len(head), view.nbytes)
            return b"".join((index, head, _ZEROS[: -size % _ALIGNMENT_BYTES], view))
        return b"".join(self.parts())

    def write_into(self, view: memoryview) -> None:
        """Copy the body to the start of ``view``, which must be flat, writable and at least ``nbytes`` bytes long."""
        start = 0
        for part in self.parts():
            view[start : start + len(part)] = part
            start += len(part)


def split(body: memoryview) -> tuple[memoryview, list[Any]]:
    """Return the head and buffers of a body that begins with 1; copy small buffers and buffers of read-only bodies.

    Raises:
        ValueError, struct.error: the body is malformed.
    """
    kind, count, head_size = _INDEX.unpack_from(body)
    if kind != 1:
        raise ValueError(f"a body begins with 0 or 1, not with {kind}")
    sizes = struct.unpack_from(f"<{count}Q", body, _INDEX.size)
    start = _INDEX.size + 8 * count
    end = start + head_size
    head = body[start:end]
    buffers: list[Any] = []
    for size in sizes:
        start = end + -end % _ALIGNMENT_BYTES
        end = start + size
        piece = body[start:end]
        buffers.append(bytearray(piece) if size < COPY_MAX_BYTES or body.readonly else piece)
    if end > body.nbytes:
        raise ValueError(f"the index speaks of {end} bytes, the body has {body.nbytes}")
    return head, buffers
