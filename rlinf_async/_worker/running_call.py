"""``Call``: a worker's record of a call that it must answer, with its caller, method, state and task."""

from __future__ import annotations

import asyncio
from enum import Enum, auto

from rlinf_async._core.payload import Body
from rlinf_async._waits.thread_gate import EndableWaits
from rlinf_async._wire.unix import Connection
from rlinf_async.errors import PeerLost


class CallState(Enum):
    QUEUED = auto()
    RUNNING = auto()
    ENDED = auto()


QUEUED, RUNNING, ENDED = CallState


class Call:
    """One call that this worker must answer."""

    __slots__ = (
        "_event",
        "body",
        "call",
        "came_at",
        "cancelled",
        "credit",
        "direct",
        "failure",
        "granted",
        "method",
        "place",
        "slot",
        "source",
        "state",
        "task",
        "void",
        "waits",
    )

    def __init__(
        self,
        source: int,
        slot: int,
        call: int,
        method: str,
        credit: int,
        direct: Connection | None,
        came_at: float | None,
    ) -> None:
        self.source = source
        self.slot = slot
        self.call = call
        self.method = method
        self.credit = credit
        # Socket for the answers; None if the answers go through the daemon.
        self.direct = direct
        # Time of arrival if the call came directly, in which case its caller reports it to the daemon; otherwise None.
        self.came_at = came_at
        self.body: Body | None = None  # encoded arguments, until the call begins
        self.state: CallState = QUEUED
        self.cancelled = False
        self.task: asyncio.Task[None] | None = None
        self.granted: asyncio.Future[None] | None = None
        self._event = 0
        self.place = 0  # place in the journal of calls, set when the call starts
        self.failure: str | None = None  # another rank's failure while this call was open
        # Error set once a rank has died during an ``on_restart``, after which the hooks will be called again.
        self.void: PeerLost | None = None
        self.waits: EndableWaits | None = None  # blocking waits of an ``on_restart``
