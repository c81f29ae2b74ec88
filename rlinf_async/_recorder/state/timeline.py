"""``Timeline`` of one process, from its flight recorder's ring: spans in lanes, bubbles and points on the wall clock.

All times are nanoseconds since the epoch: a ring's monotonic times plus its ``wall_offset``, so that several machines'
timelines are aligned as well as their clocks.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from .event_ring import SKIPPED, EventKind, Phase
from .ring_contents import RingContents, RingEvent

MAX_LANES: Final = 12  # further parallel operations share the last lane

# Kinds of operations in which a served call waits for other processes.
WAITS: Final = frozenset((EventKind.RECV, EventKind.GET, EventKind.WAIT))


class TimelineSpan(NamedTuple):
    """An operation on a timeline; ``end`` is None while it is open. For ``value``, see ``EventKind``.

    Attributes:
        failed: true if the operation ended with an error.
        lane: 0 for an operation that runs alone; overlapping operations get the first free lane.
    """

    begin: int
    end: int | None
    kind: EventKind
    name: str
    value: float
    failed: bool
    lane: int


class Point(NamedTuple):
    """An event without duration, such as a version of weights or a warning about a long wait."""

    time: int
    kind: EventKind
    name: str
    value: float


@dataclass(frozen=True)
class Timeline:
    """The activity of one process over time.

    Attributes:
        spans: operations in the order in which they began.
        bubbles: begin and end of each period in which a rank served no call, or its calls only waited (see
            ``_bubbles``), in order; empty for a process that serves no calls, such as a driver.
        begin, latest: times of the first and last event; 0 if there are no events.
        skipped: number of operations omitted because too many arrived at once.
        died: time of an abnormal end; operations open at that time have failed.
    """

    identity: dict[str, Any]
    spans: list[TimelineSpan]
    bubbles: list[tuple[int, int]]
    points: list[Point]
    begin: int
    latest: int
    is_full: bool
    skipped: int
    died: int | None = None

    @classmethod
    def of(cls, ring: RingContents, until: int, died: int | None = None) -> Timeline:
        """Return a ring's timeline ``until`` the process's end or now; ``died`` is the time of an abnormal end."""
        offset = ring.wall_offset
        ends = {event.operation: event for event in ring.events if event.phase in _ENDS}
        begins = [event for event in ring.events if event.phase is Phase.BEGIN]
        spans = _in_lanes(begins, ends, offset)
        points = [
            Point(event.time + offset, event.kind, event.name, event.value)
            for event in ring.events
            if event.phase is Phase.POINT
        ]
        begin, latest = (ring.events[0].time + offset, ring.events[-1].time + offset) if ring.events else (0, 0)
        since = _known_since(begins, ends.values(), ring.is_full)
        bubbles = [] if since is None else _bubbles(spans, since + offset, max(until, latest))
        skipped = next((int(metric.value) for metric in ring.metrics if metric.name == SKIPPED), 0)
        return cls(ring.identity, spans, bubbles, points, begin, latest, ring.is_full, skipped, died)

    @property
    def process(self) -> str:
        """Return the process's name, such as ``rollout:3`` or ``driver``."""
        return str(self.identity.get("process", "?"))

    def __repr__(self) -> str:
        return f"<Timeline of {self.process} [{len(self.spans)} spans]>"


_ENDS: Final = (Phase.END, Phase.FAILED)


def _in_lanes(begins: Iterable[RingEvent], ends: dict[int, RingEvent], offset: int) -> list[TimelineSpan]:
    spans: list[TimelineSpan] = []
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    lanes = itertools.count()
    for event in begins:
        while busy and busy[0][0] <= event.time:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else next(lanes)
        end = ends.get(event.operation)
        heapq.heappush(busy, (math.inf if end is None else end.time, lane))
        ended = None if end is None else end.time + offset
        failed = end is not None and end.phase is Phase.FAILED
        shown = min(lane, MAX_LANES - 1)
        spans.append(TimelineSpan(event.time + offset, ended, event.kind, event.name, event.value, failed, shown))
    return spans


def _known_since(begins: Sequence[RingEvent], ends: Iterable[RingEvent], is_full: bool) -> int | None:
    """Return the time from which all served calls are known; None if no call was served.

    In a full ring, the begin events of long operations have been overwritten. Any of these operations may be a served
    call, so nothing is known up to the last end event without a begin event.
    """
    served = next((event.time for event in begins if event.kind is EventKind.SERVE), None)
    if served is None or not is_full:
        return None if served is None else begins[0].time
    numbers = {event.operation for event in begins}
    return max([served, *(event.time for event in ends if event.operation not in numbers)])


def _bubbles(spans: Iterable[TimelineSpan], since: int, until: int) -> list[tuple[int, int]]:
    """Return the periods in which there are at least as many open receives, gets and other waits as served calls.

    So a rank that computes while its call has an open receive counts as waiting, unless a user's span
    (``worker_timer``) has begun since then. Waits that began before the calls do not count.
    """
    changes: list[tuple[int, int, EventKind, int]] = []
    for number, span in enumerate(spans):
        if span.kind is EventKind.SERVE or span.kind is EventKind.SPAN or span.kind in WAITS:
            changes.append((span.begin, 1, span.kind, number))
            if span.end is not None:
                changes.append((span.end, -1, span.kind, number))
    changes.sort(key=lambda change: change[0])  # stable sort, because a span begins before it ends
    found: list[tuple[int, int]] = []
    serves = 0
    waits: set[int] = set()
    working: set[int] = set()
    begun: int | None = since
    for time, step, kind, number in changes:
        if kind is EventKind.SERVE:
            serves += step
        elif step < 0:
            (working if kind is EventKind.SPAN else waits).discard(number)
        elif kind is not EventKind.SPAN and serves:
            waits.add(number)
        elif waits:
            working.add(number)
        if not serves:
            waits.clear()
        if not waits:
            working.clear()
        is_bubble = serves <= len(waits) and not working
        if is_bubble and begun is None:
            begun = max(time, since)
        elif not is_bubble and begun is not None:
            if time > begun:
                found.append((begun, time))
            begun = None
    if begun is not None and until > begun:
        found.append((begun, until))
    return found
