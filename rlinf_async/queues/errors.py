"""The errors by which a queue refuses a wish."""

from __future__ import annotations

import asyncio
from typing import Final

from rlinf_async.errors import ClosedError, EndOfChannel


def error_of(kind: str, text: str) -> Exception:
    """The error that a queue's refusal becomes."""
    return _ERRORS[kind](text)


_ERRORS: Final[dict[str, type[Exception]]] = {
    kind.__name__: kind
    for kind in (asyncio.QueueFull, asyncio.QueueEmpty, EndOfChannel, ClosedError, OSError, ValueError)
}
