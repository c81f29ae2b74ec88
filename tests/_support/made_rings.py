"""Contents of flight recorders' rings that never were: operations put down one by one, with their times."""

from __future__ import annotations

import itertools
from typing import Any

from rlinf_async._recorder.state.event_ring import EventKind, Phase
from rlinf_async._recorder.state.ring_contents import RingContents, RingEvent

_NUMBERS = itertools.count(1)


def operation(kind: EventKind, name: str, begin: int, end: int | None, *, failed: bool = False) -> list[RingEvent]:
    """Begin and end of an operation; with None it has only begun."""
    number = next(_NUMBERS)
    begun = RingEvent(begin, kind, Phase.BEGIN, number, name, 0.0)
    last = Phase.FAILED if failed else Phase.END
    return [begun] if end is None else [begun, RingEvent(end, EventKind.END, last, number, "", 0.0)]


def point(kind: EventKind, name: str, time: int, value: float = 0.0) -> list[RingEvent]:
    return [RingEvent(time, kind, Phase.POINT, next(_NUMBERS), name, value)]


def ring(process: str, *operations: list[RingEvent], wall_offset: int = 0, is_full: bool = False) -> RingContents:
    """The ring of a process, whose endpoint is its name's hash."""
    identity: dict[str, Any] = {"process": process, "run": "0a0a0a0a", "node": 0, "endpoint": hash(process) & 0xFFFF}
    identity |= {"pid": 100, "host": "here"}
    events = sorted((event for each in operations for event in each), key=lambda event: event.time)
    return RingContents(identity, wall_offset, events, [], is_full)
