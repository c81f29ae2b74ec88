"""Bodies of frames: small bodies inline, large bodies in shared memory, sent as a descriptor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlinf_async._core.encoded import Encoded
from rlinf_async._core.frames import MAX_INLINE_BYTES
from rlinf_async._core.pool import pool
from rlinf_async._core.segment import close_fds, map_private
from rlinf_async.errors import TransferFailed

Body = bytes | memoryview  # received body: bytes, or a private mapping of the sender's memory


def pack_body(encoded: Encoded | bytes) -> tuple[bytes | int, Sequence[int]]:
    """Return a frame's body field and the descriptors sent with it; MemoryError if memory is short."""
    if isinstance(encoded, bytes):
        if len(encoded) <= MAX_INLINE_BYTES:
            return encoded, ()
        return len(encoded), (pool.write([encoded], len(encoded)),)
    if encoded.nbytes <= MAX_INLINE_BYTES:
        return encoded.to_bytes(), ()
    return encoded.nbytes, (pool.write(encoded.parts(), encoded.nbytes),)


def open_body(body: Any, fds: list[int]) -> Body:
    """Return the bytes of a body and close its descriptor. Raises like ``map_private``; TransferFailed if lost."""
    if not fds:
        if isinstance(body, str):
            raise TransferFailed(body)
        return body if isinstance(body, bytes | memoryview) else b""
    try:
        return map_private(fds[0], body)
    finally:
        close_fds(fds)
