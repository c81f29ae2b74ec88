"""Interfaces that a client delivers frames to: ``ReplyHandler`` (replies of a call), ``Receiver``, ``Inbox``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from rlinf_async._core.payload import Body

NOWHERE: Final = -1
"""Target of a slot for which a call has not left: its rank is away."""


class ReplyHandler(Protocol):
    """One call: begun before it is sent, and then answered slot by slot, in whatever order."""

    _method: str
    _targets: Sequence[int]
    """Endpoints of the workers that are called, by slot, once it has begun; or ``NOWHERE``."""

    def _begin(self, call: int) -> Sequence[int]:
        """It is about to be sent, and known to the daemons by this number. Return its targets."""

    def _mark_departed(self) -> None:
        """It has been sent to all of them."""

    def _unanswered(self) -> Sequence[int]:
        """Slots whose last answer has not come."""

    def _answer(self, slot: int, status: int, body: Body) -> bool:
        """Takes one; True once it expects no more."""


class Receiver(Protocol):
    """What takes the frames of some kinds; the descriptors are its own from then on."""

    def on_frame(self, frame: list[Any], fds: list[int]) -> None: ...


class Inbox(Receiver, Protocol):
    """What a worker does with frames that are meant for it."""

    def on_batch(self) -> None:
        """What has come at once has been handed over."""
