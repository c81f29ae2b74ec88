"""Exceptions for a queue's refusals, and ``QueueEnd``: errors for puts and gets after a queue is closed or lost."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from rlinf_async._channels.state.refusals import closed_to_gets, closed_to_puts
from rlinf_async.errors import ClosedError, EndOfChannel, LeaseLost, PeerLost


def error_of(kind: str, text: str) -> Exception:
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
    """The errors for all requests to an ended queue.

    Attributes:
        put, get: the error for later puts, and the error for later gets.
        closed: True if the channel was closed; False if the connection is lost, so that the contents are unknown.
    """

    put: BaseException
    get: BaseException
    closed: bool = False

    @classmethod
    def of_closed(cls, channel: str, why: str = "", noun: str = "channel") -> QueueEnd:
        """Return the end of a closed channel. With a reason other than ``close()``, loops over its items raise."""
        put, get = ClosedError(closed_to_puts(channel, why, noun)), closed_to_gets(channel, why, noun)
        return cls(put, ClosedError(get) if why else EndOfChannel(get), True)

    @classmethod
    def of_lost(cls, error: BaseException) -> QueueEnd:
        return cls(error, error)
