"""Words of any length as messages that a pipe takes whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgpack

MOST: Final = 16384
"""Bytes of a piece.  Linux puts up to 32 KiB into a local socket at once: so little is never cut in two."""

_MORE: Final = 1
_FIRST: Final = 2
_LAST: Final = 3
"""Codes of msgpack's extension types: what a piece is of."""


def pieces_of(value: Any) -> Iterator[bytes]:
    """A value of plain data, packed: as it is if it is short, else piece by piece.  It must be no ``ExtType``."""
    packed = msgpack.packb(value)
    if len(packed) <= MOST:
        yield packed
        return
    for start in range(0, len(packed), MOST):
        end = start + MOST
        code = _FIRST if start == 0 else _MORE if end < len(packed) else _LAST
        yield msgpack.packb(msgpack.ExtType(code, packed[start:end]))


def whole(piece: bytes) -> Any:
    """The value that is all in this one piece; None where there is more of it.

    Raises:
        ValueError: this is no piece.
    """
    found = msgpack.unpackb(piece)
    return None if isinstance(found, msgpack.ExtType) else found


class Joining:
    """Puts the pieces together again; a value that broke off half way is forgotten with the next one."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def take(self, piece: bytes) -> list[Any]:
        """
        Returns:
            The value that is whole with this piece; nothing where more has to come.

        Raises:
            ValueError: this is no piece, or its beginning is missing.
        """
        found = msgpack.unpackb(piece)
        if not isinstance(found, msgpack.ExtType):
            self._parts.clear()
            return [found]
        if found.code == _FIRST:
            self._parts = [found.data]
            return []
        if not self._parts:
            raise ValueError("it is the middle of a word whose beginning somebody else has read")
        self._parts.append(found.data)
        if found.code != _LAST:
            return []
        whole = b"".join(self._parts)
        self._parts.clear()
        return [msgpack.unpackb(whole)]
