"""Interfaces that a client delivers frames to: ``ReplyHandler`` (replies of a call), ``Receiver``, ``CallReceiver``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from rlinf_async._core.payload import Body

NOWHERE: Final = -1
"""Target of a slot whose call has not been sent, because its rank is away."""


class ReplyHandler(Protocol):
    """Handler of one call: begun before the call is sent, then given the answer of each slot, in any order."""

    _method: str
    _targets: Sequence[int]
    """Endpoint of the called worker, or ``NOWHERE``, by slot; set when the call begins."""

    def _begin(self, call: int) -> Sequence[int]:
        """Record the number of a call that is about to be sent. Return its targets."""

    def _mark_departed(self) -> None: ...

    def _unanswered(self) -> Sequence[int]: ...

    def _answer(self, slot: int, status: int, body: Body) -> bool:
        """Take an answer. Return True once no more are expected."""


class Receiver(Protocol):
    """Receiver of some kinds of frames, which owns their descriptors."""

    def on_frame(self, frame: list[Any], fds: list[int]) -> None: ...


class CallReceiver(Receiver, Protocol):
    """Receiver of the calls and other frames for a worker."""

    def on_batch(self) -> None:
        """Handle the end of a read: all its frames have been delivered."""
