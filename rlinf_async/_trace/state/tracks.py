"""``Tracks``: arranges one process's spans, from begins and ends of operations, on tracks without overlaps.

A *track* is a line of nested or consecutive spans: the main thread has a track, as does every task and thread with open
spans. There are two kinds of spans. A span that is *entered* and left is running code; such spans nest naturally on one
track. A span that *begins* is an operation, such as a message in transit, which may end on another thread and overlap
other operations. It is drawn on the track of the task or thread that began it if it fits; otherwise on a *lane*, a
track for overlapping operations.
"""

from __future__ import annotations

import heapq
from typing import Any, Final

# Maximum number of a process's open operations; beyond it, the oldest are not drawn.
MAX_OPEN: Final = 1 << 16

# The main thread, whose track is permanent; other threads have negative numbers, tasks positive ones.
MAIN: Final = 0

# Track, begin and end in nanoseconds of the process's monotonic clock, name, category, arguments, flow; plain data.
DrawnSpan = tuple[int, int, int, str, str, dict[str, Any] | None, Any]


class _Track:
    """A track: the time of its latest event, and its entered spans, innermost last."""

    __slots__ = ("last", "number", "open", "who")

    def __init__(self, number: int, who: int) -> None:
        self.number = number
        self.who = who
        self.last = 0
        self.open: list[_Open] = []


class _Open:
    """An open span."""

    __slots__ = ("args", "category", "entered", "flow", "name", "operation", "since", "track")

    def __init__(
        self, operation: int, track: _Track, since: int, name: str, category: str, args: Any, flow: Any, entered: bool
    ) -> None:
        self.operation, self.track, self.since, self.entered = operation, track, since, entered
        self.name, self.category, self.args, self.flow = name, category, args, flow


class Tracks:
    """The tracks of one process; the reader clears the lists of new tracks' names and of ended spans."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {1: "main"}
        self.spans: list[DrawnSpan] = []
        self._numbers = 1
        self._tracks = {MAIN: _Track(1, MAIN)}
        self._free: tuple[list[tuple[int, _Track]], list[tuple[int, _Track]]] = ([], [])
        self._counts = [0, 0]
        self._lanes: list[tuple[int, int]] = []
        self._open: dict[int, _Open] = {}

    def __repr__(self) -> str:
        return f"<Tracks [{self._numbers} tracks, {len(self._open)} open, {len(self.spans)} spans]>"

    def begin(
        self, operation: int, time: int, who: int, name: str, category: str, args: Any, flow: Any, *, entered: bool
    ) -> None:
        """Begin an operation, or enter a span, in the task or thread ``who``."""
        track = self._tracks.get(who) or self._free_track(who)
        # Events written by several threads may be slightly out of order.
        since = max(time, track.last + 1)
        span = self._open[operation] = _Open(operation, track, since, name, category, args, flow, entered)
        if entered:
            if track.who != who:
                self._adopt(track, who)
            track.last = since
            track.open.append(span)
        if len(self._open) > MAX_OPEN:
            self._close(self._open.pop(next(iter(self._open))))

    def end(self, operation: int, time: int, args: Any = None, flow: Any = None) -> None:
        """End an operation, with further ``args``; do nothing if it is not open."""
        span = self._open.pop(operation, None)
        if span is None:
            return
        track = span.track
        until = max(time, span.since)
        if span.entered:
            # A span that was entered later and is still open (perhaps a generator) outlives this span, so draw it on a
            # lane.
            for later in track.open[track.open.index(span) + 1 :]:
                later.entered = False
            number, track.last = track.number, (until := max(until, track.last))
        elif span.since > track.last:
            number, track.last = track.number, until
        else:
            number = self._lane(span.since, until)
        args = {**(span.args or {}), **args} if args else span.args
        self.spans.append((number, span.since, until, span.name, span.category, args, flow or span.flow))
        self._close(span)

    def end_innermost(self, time: int, who: int, name: str, category: str) -> None:
        track = self._tracks.get(who)
        for span in reversed(track.open if track is not None else ()):
            if (span.name, span.category) == (name, category):
                self.end(span.operation, time)
                return

    def abandon(self) -> int:
        """Drop all open operations, because their ends are missing. Return how many there were."""
        count = len(self._open)
        for span in self._open.values():
            self._close(span)
        self._open.clear()
        return count

    def _close(self, span: _Open) -> None:
        if span in span.track.open:
            span.track.open.remove(span)
        self._release(span.track)

    def _free_track(self, who: int) -> _Track:
        """Return the free track with the lowest number; a new track if none is free."""
        is_thread = who < 0
        free = self._free[is_thread]
        if not free:
            self._counts[is_thread] += 1
            kind = "thread" if is_thread else "coroutine"
            track = _Track(self._new_number(f"{kind} {self._counts[is_thread]}"), who)
            heapq.heappush(free, (track.number, track))
            track.who = MAIN
        return free[0][1]

    def _adopt(self, track: _Track, who: int) -> None:
        heapq.heappop(self._free[who < 0])
        track.who = who
        self._tracks[who] = track

    def _release(self, track: _Track) -> None:
        if track.who != MAIN and not track.open:
            del self._tracks[track.who]
            heapq.heappush(self._free[track.who < 0], (track.number, track))
            track.who = MAIN

    def _lane(self, since: int, until: int) -> int:
        """Return a lane that is empty after ``since``."""
        lanes = self._lanes
        if lanes and lanes[0][0] <= since:
            number = lanes[0][1]
            heapq.heapreplace(lanes, (until, number))
            return number
        number = self._new_number(f"overlapping {len(lanes) + 1}")
        heapq.heappush(lanes, (until, number))
        return number

    def _new_number(self, name: str) -> int:
        self._numbers += 1
        self.names[self._numbers] = name
        return self._numbers
