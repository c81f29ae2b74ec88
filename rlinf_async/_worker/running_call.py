"""``Call``: a worker's record of a call that it owes an answer to (caller, method, state, task)."""

from __future__ import annotations

import asyncio
from enum import Enum, auto

from rlinf_async._core.payload import Body
from rlinf_async._waits.thread_gate import EndableWaits
from rlinf_async._wire.unix import Connection
from rlinf_async.errors import PeerLost


class State(Enum):
    QUEUED = auto()
    RUNNING = auto()
    ENDED = auto()


QUEUED, RUNNING, ENDED = State


class Call:
    """One call that this worker owes an answer to."""

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
        """The way that all its answers take; None: by way of the daemon."""
        self.came_at = came_at
        """Monotonic seconds, of a call that came directly and that its caller reports to the daemon; None otherwise."""
        self.body: Body | None = None
        """Its arguments, until it begins."""
        self.state: State = QUEUED
        self.cancelled = False
        self.task: asyncio.Task[None] | None = None
        self.granted: asyncio.Future[None] | None = None
        self._event = 0
        """In the flight recorder, once it runs."""
        self.place = 0
        """In the journal of calls, once it runs."""
        self.failure: str | None = None
        """Of another rank of the group, while this call was open."""
        self.void: PeerLost | None = None
        """True once a rank has died during an ``on_restart``, whose hooks are then called again."""
        self.waits: EndableWaits | None = None
        """The blocking waits of an ``on_restart``."""
