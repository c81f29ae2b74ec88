"""The body of a message: ``Payload`` serialises a value for a frame or link, ``Content`` rebuilds it on arrival."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlinf_async._core import codec
from rlinf_async._core.encoded import Encoded
from rlinf_async._core.frames import MAX_INLINE_BYTES
from rlinf_async._core.payload import pack_body
from rlinf_async._core.pool import pool
from rlinf_async._messaging.state.message_facts import OBJECT, PAIR, TENSOR
from rlinf_async._transports.shared_memory import SharedSegment


class Payload:
    """An outgoing value, which refers to the value's own memory until it is packed.

    The receiver gets the description (``kind`` and ``about``) before the content.
    """

    is_on_gpu = False

    def __init__(self, kind: int, about: Any, encoded: Encoded | bytes | memoryview) -> None:
        self.kind = kind
        self.about = about
        self._encoded = encoded
        self.nbytes = len(encoded) if isinstance(encoded, bytes) else encoded.nbytes

    def pack(self) -> tuple[bytes | int, Sequence[int]]:
        """Return the body of a frame and its descriptors, like ``pack_body``; afterwards the value may change."""
        encoded = self._encoded
        if not isinstance(encoded, memoryview):
            return pack_body(encoded)
        if encoded.nbytes <= MAX_INLINE_BYTES:
            return encoded.tobytes(), ()
        return encoded.nbytes, (pool.write([encoded], encoded.nbytes),)

    def make_plain(self) -> Payload:
        return self

    @property
    def has_small_head(self) -> bool:
        """True if all bytes that will be unpickled fit into the frame, so that a link would carry only plain memory."""
        encoded = self._encoded
        if isinstance(encoded, memoryview):
            return True
        return (len(encoded) if isinstance(encoded, bytes) else len(encoded.head)) <= MAX_INLINE_BYTES

    def parts(self) -> tuple[bytes, list[memoryview]]:
        """Split the content for a link: a head that fits into the frame, and buffers."""
        encoded = self._encoded
        if isinstance(encoded, memoryview):
            return b"", [encoded]
        head, buffers = (encoded[1:], []) if isinstance(encoded, bytes) else (encoded.head, list(encoded.buffers))
        return (head, buffers) if len(head) <= MAX_INLINE_BYTES else (b"", [memoryview(head), *buffers])

    def copy(self) -> bytes | memoryview:
        """Return the content for a receiver in this process."""
        encoded = self._encoded
        if isinstance(encoded, bytes):
            return encoded
        copy = memoryview(bytearray(encoded.nbytes))
        if isinstance(encoded, memoryview):
            copy[:] = encoded
        else:
            encoded.write_into(copy)
        return copy


def encode(
    value: Any,
    piggyback: Any,
    keep: Callable[[Any], bool] | None = None,
    make: Callable[[int, Any, Encoded | bytes], Payload] = Payload,
) -> Payload:
    """Encode an object as a payload. Raise SerializationError if the value or the piggyback cannot be pickled."""
    kind = OBJECT if piggyback is None else PAIR
    root: str | tuple[str, ...] = "object"
    if piggyback is not None:
        value, root = (value, piggyback), ("object", "piggyback_payload")
    encoded = codec.encode_plain(value)
    if encoded is not None:
        return make(kind, None, encoded)
    return make(kind, None, codec.encode(value, describe="what is to be sent", root=root, keep=keep))


class Content:
    """The content of an arrived message: the frame's body or the memory that came with it, and buffers from a link.

    If there are buffers, a non-empty body is the pickle that refers to them.
    """

    __slots__ = ("body", "buffers")

    def __init__(self, body: bytes | memoryview | SharedSegment, buffers: Sequence[memoryview] | None = None) -> None:
        self.body = body
        self.buffers = buffers

    def value(self) -> Any:
        """Rebuild the object, which takes over the memory. Raise SerializationError if that fails."""
        if self.buffers is None:
            return codec.decode(self.body.open() if isinstance(self.body, SharedSegment) else self.body)
        if self.body:
            return codec.decode_parts(self.body, self.buffers)  # type: ignore[arg-type]  # a link's frame has no segment
        return codec.decode_parts(self.buffers[0], self.buffers[1:])

    def memory(self) -> bytes | memoryview | SharedSegment:
        return self.body if self.buffers is None else self.buffers[0]


def content_of(body: Any, fds: list[int]) -> Content:
    """Return the content of a frame and take ownership of its descriptors. Raise OSError if it cannot be read."""
    if not fds:
        return Content(body)
    segment = SharedSegment(fds[0], body)
    return Content(segment.open() if segment.is_small else segment)


KINDS = {OBJECT: "send", PAIR: "send", TENSOR: "send_tensor"}
