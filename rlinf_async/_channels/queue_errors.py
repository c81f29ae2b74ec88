"""Exceptions for a queue's refusals, and ``QueueEnd``: the errors of puts and gets after its close or loss."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from rlinf_async._channels.state.refusals import closed_to_gets, closed_to_puts
from rlinf_async.errors import ClosedError, EndOfChannel, LeaseLost, PeerLost


def error_of(kind: str, text: str) -> Exception:
    """The error that a queue's refusal becomes."""
    return _ERRORS[kind](text)


_ERRORS: Final[dict[str, type[Exception]]] = {
    kind.__name__: kind
    for kind in (
        *(asyncio.QueueFull, asyncio.QueueEmpty),
        *(EndOfChannel, ClosedError, LeaseLost, PeerLost, OSError, ValueError),
    )
}


@dataclass(frozen=True)
class QueueEnd:
    """The end of a queue: what is asked of it from now on ends with these errors.

    Attributes:
        put, get: the error of a put, and of a get.
        closed: the channel was closed; otherwise the way to it is gone, and nothing is known of its contents.
    """

    put: BaseException
    get: BaseException
    closed: bool = False

    @classmethod
    def of_closed(cls, channel: str, why: str = "", noun: str = "channel") -> QueueEnd:
        """``why`` is given where more than a ``close()`` has ended it; then a loop over its items does not just end."""
        put, get = ClosedError(closed_to_puts(channel, why, noun)), closed_to_gets(channel, why, noun)
        return cls(put, ClosedError(get) if why else EndOfChannel(get), True)

    @classmethod
    def of_lost(cls, error: BaseException) -> QueueEnd:
        return cls(error, error)
