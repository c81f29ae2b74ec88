"""``Timeline`` of one process, from its flight recorder's ring: spans in lanes, bubbles and points on the wall clock.

All times are nanoseconds since the epoch: a ring's monotonic times plus its ``wall_offset``, so that timelines of
several machines are as well aligned as their clocks are.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from .event_ring import SKIPPED, EventKind, Phase
from .ring_contents import Event, RingContents

MAX_LANES: Final = 12
"""Operations beside each other that have a lane of their own; all others share the last one."""

WAITS: Final = frozenset((EventKind.RECV, EventKind.GET, EventKind.WAIT))
"""Kinds of operations in which a served call waits for others."""


class Span(NamedTuple):
    """One operation.

    Attributes:
        begin: and ``end``; that is None of an operation that has not ended.
        value: see ``EventKind``.
        failed: it ended with an error.
        lane: 0 for what runs alone; what begins while others run is in the first free one.
    """

    begin: int
    end: int | None
    kind: EventKind
    name: str
    value: float
    failed: bool
    lane: int


class Point(NamedTuple):
    """An event that takes no time: a version of weights, a word about a long wait."""

    time: int
    kind: EventKind
    name: str
    value: float


@dataclass(frozen=True)
class Timeline:
    """What one process did.

    Attributes:
        identity: see ``RingContents``.
        spans: in the order of their begins.
        bubbles: begins and ends of the times in which a rank served no call, or its calls only waited (see
            ``_bubbles``), in order; none of a process that serves nothing, as a driver.
        begin: time of the first event; 0 without one.
        latest: time of the last event; 0 without one.
        is_full: older events were overwritten.
        skipped: operations that were left out, as there were too many of them a second; what they were is not known.
        died: time at which the process ended abnormally; what it had begun then has failed.
    """

    identity: dict[str, Any]
    spans: list[Span]
    bubbles: list[tuple[int, int]]
    points: list[Point]
    begin: int
    latest: int
    is_full: bool
    skipped: int
    died: int | None = None

    @classmethod
    def of(cls, ring: RingContents, until: int, died: int | None = None) -> Timeline:
        """The timeline of a ring.

        Args:
            until: end of the process, or of the look at it if it lives; a bubble that is open ends there.
            died: that end, where it was abnormal.
        """
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
        """``rollout:3``, ``driver``."""
        return str(self.identity.get("process", "?"))

    def __repr__(self) -> str:
        return f"<Timeline of {self.process} [{len(self.spans)} spans]>"


_ENDS: Final = (Phase.END, Phase.FAILED)


def _in_lanes(begins: Iterable[Event], ends: dict[int, Event], offset: int) -> list[Span]:
    """Spans, each in the lowest lane that is free where it begins: nested and overlapping ones below each other."""
    spans: list[Span] = []
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
        spans.append(Span(event.time + offset, ended, event.kind, event.name, event.value, failed, shown))
    return spans


def _known_since(begins: Sequence[Event], ends: Iterable[Event], is_full: bool) -> int | None:
    """Time from which on it is known whether a call is served; None where none is.

    In a full ring the begins of what runs for long were overwritten.  That may be a call that is served: until the last
    end without a begin nothing is said.
    """
    served = next((event.time for event in begins if event.kind is EventKind.SERVE), None)
    if served is None or not is_full:
        return None if served is None else begins[0].time
    numbers = {event.operation for event in begins}
    return max([served, *(event.time for event in ends if event.operation not in numbers)])


def _bubbles(spans: Iterable[Span], since: int, until: int) -> list[tuple[int, int]]:
    """Times in which the calls that are served have as many receives, gets and other waits open as they are, or more.

    So a rank that computes beside a receive that its call has posted is taken to wait, unless a span of the user's
    (``worker_timer``) has begun meanwhile: then it works.  What was posted before its calls is no wait of theirs.
    """
    changes: list[tuple[int, int, EventKind, int]] = []
    for number, span in enumerate(spans):
        if span.kind is EventKind.SERVE or span.kind is EventKind.SPAN or span.kind in WAITS:
            changes.append((span.begin, 1, span.kind, number))
            if span.end is not None:
                changes.append((span.end, -1, span.kind, number))
    changes.sort(key=lambda change: change[0])  # stable: a span begins before it ends
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
