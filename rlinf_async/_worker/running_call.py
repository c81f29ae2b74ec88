"""``Call``: a worker's record of a call that it owes an answer to (caller, method, state, task)."""

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
        self.direct = direct
        """Socket for all its answers; None if they go by way of the daemon."""
        self.came_at = came_at
        """Arrival in monotonic seconds if the call came directly and its caller reports it to the daemon; else None."""
        self.body: Body | None = None
        """Encoded arguments, until the call begins."""
        self.state: CallState = QUEUED
        self.cancelled = False
        self.task: asyncio.Task[None] | None = None
        self.granted: asyncio.Future[None] | None = None
        self._event = 0
        """Its event in the flight recorder, once it runs."""
        self.place = 0
        """Its place in the journal of calls, once it runs."""
        self.failure: str | None = None
        """Failure of another rank of the group while this call was open."""
        self.void: PeerLost | None = None
        """Set once a rank has died during an ``on_restart``: the hooks are then called again."""
        self.waits: EndableWaits | None = None
        """Blocking waits of an ``on_restart``."""
