"""Interfaces to which a client delivers frames: ``ReplyHandler`` (a call's replies), ``Receiver``, ``CallReceiver``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from rlinf_async._core.payload import Body

NOWHERE: Final = -1
"""Target of a slot whose call has not been sent, because its rank is being restarted."""


class ReplyHandler(Protocol):
    """Handler for the replies to one call: ``_begin`` is called before the call is sent, ``_answer`` for each reply."""

    _method: str
    _targets: Sequence[int]
    """Maps each slot to the endpoint of the called worker, or ``NOWHERE``; set when the call begins."""

    def _begin(self, call: int) -> Sequence[int]:
        """Record the number of a call that is about to be sent. Return its targets."""

    def _mark_departed(self) -> None: ...

    def _unanswered(self) -> Sequence[int]: ...

    def _answer(self, slot: int, status: int, body: Body) -> bool:
        """Take an answer. Return True once no more answers are expected."""


class Receiver(Protocol):
    """Receiver for some kinds of frames; takes ownership of their descriptors."""

    def on_frame(self, frame: list[Any], fds: list[int]) -> None: ...


class CallReceiver(Receiver, Protocol):
    """A worker's receiver for calls and other frames."""

    def on_batch(self) -> None:
        """Handle the end of a read, after all its frames have been delivered."""
