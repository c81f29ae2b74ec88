"""Span recorder of one process: stretches of time on tracks (tasks, threads, lanes), buffered until taken.

A *track* is a line on which stretches lie in each other or side by side, and never overlap: the main thread has one,
and so has every task and thread for as long as something of it is open.  There are two kinds of stretches.  One that is
*entered* and *left* is code that runs: on one track these nest by themselves.  One that *begins* and *ends* is an
operation, such as a message on its way: it may end anywhere and while other things go on.  Where it fits into the track
of whoever began it, it is drawn there; else on a *lane*, a track for what overlaps.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from rlinf_async import settings

_MAX_BATCH_SPANS: Final = 256
"""Spans that are taken at once."""

FLUSH_SPANS: Final = 16 * _MAX_BATCH_SPANS
"""Spans; when there are so many it is time to take them, whatever goes on."""

_MAX_TEXT_CHARS: Final = 200
"""Characters of a name, or of a text among the arguments."""

_MAX_ARGUMENTS: Final = 16

Event = tuple[int, int, int, str, str, dict[str, Any] | None, Any]
"""Track, begin and end in nanoseconds of this process's monotonic clock, name, category, arguments, flow; plain."""

Batch = tuple[dict[int, str], int, list[Event]]
"""Names of tracks that are new, spans that were dropped before, and spans."""


class Track:
    """A line of spans.

    Attributes:
        number: what it is known by.
        serial: counts what was entered and left here, so that it can be seen whether that has happened since.
        busy_until: end of the last operation that was drawn here.
        pending: operations that were begun here and have not ended.
        open: what was entered and not left, innermost last.
    """

    __slots__ = ("busy_until", "is_pooled", "key", "number", "open", "pending", "serial")

    def __init__(self, number: int, key: Any, *, is_pooled: bool) -> None:
        self.number = number
        self.key = key
        self.is_pooled = is_pooled
        self.serial = 0
        self.busy_until = 0
        self.pending = 0
        self.open: list[Span] = []


class Span:
    """A stretch of time that has not ended yet."""

    __slots__ = ("args", "category", "flow", "name", "serial", "since", "track")

    def __init__(self, track: Track, name: str, category: str, args: dict[str, Any] | None, flow: Any) -> None:
        self.track = track
        self.name = name
        self.category = category
        self.args = args
        self.flow = flow
        self.serial = track.serial
        self.since = 0


class Recorder:
    """Records spans.  Thread-safe; nothing in it waits, and what it holds is bounded.

    Args:
        who: the running task, or the number of the running thread where there is none.
        on_full: called, outside of every lock but possibly in a finalizer, when there is enough to be taken.
        main: number of the thread that has a track for good.
        clock: nanoseconds.

    Example:
        span = recorder.enter("step", "user")
        ...
        recorder.leave(span)
        tracks, dropped, events = recorder.take()
    """

    def __init__(
        self,
        who: Callable[[], Any],
        on_full: Callable[[], None],
        main: int,
        *,
        enough: int = FLUSH_SPANS,
        capacity: int | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._who = who
        self._on_full = on_full
        self._enough = enough
        self._capacity = int(settings.TRACE_BUFFER_SPANS()) if capacity is None else capacity
        self._clock = clock
        # A finalizer that the collector runs in here may end an operation.
        self._lock = threading.RLock()
        self._events: list[Event] = []
        self._dropped = 0
        self._names: dict[int, str] = {1: "main"}
        self._numbers = 1
        self._tracks: dict[Any, Track] = {main: Track(1, main, is_pooled=False)}
        self._free: dict[bool, list[tuple[int, Track]]] = {True: [], False: []}
        self._pooled = {True: 0, False: 0}
        self._lanes: list[tuple[int, int]] = []
        self._sweep_at = 1024

    def __repr__(self) -> str:
        return f"<Recorder [{len(self._events)} spans kept, {self._dropped} dropped, {self._numbers} tracks]>"

    def __len__(self) -> int:
        return len(self._events)

    # -- code that runs -----------------------------------------------------------------------------------------

    def enter(
        self, name: str, category: str, args: dict[str, Any] | None = None, flow: Any = None, *, of: Any = None
    ) -> Span:
        """Something begins to run, here or in the task ``of``."""
        key = of or self._who()
        with self._lock:
            track = self._tracks.get(key) or self._adopt(key)
            span = Span(track, name, category, args, flow)
            track.serial += 1
            track.open.append(span)
            span.since = self._clock()
        return span

    def leave(self, span: Span) -> None:
        """It has run.  Any thread."""
        with self._lock:
            track = span.track
            now = self._clock()
            track.serial += 1
            number = track.number
            if track.open and track.open[-1] is span:
                track.open.pop()
            elif span in track.open:
                # What was entered later and is still open, a generator perhaps, outlives it: that is on no track now.
                del track.open[track.open.index(span) :]
            else:
                number = self._lane(span.since, now)
            full = self._keep((number, span.since, now, span.name, span.category, span.args, span.flow))
            if track.is_pooled and not track.open and not track.pending:
                self._release(track)
        if full:
            self._on_full()

    def innermost(self, name: str, category: str) -> Span | None:
        """What was entered here under that name, and not left."""
        with self._lock:
            track = self._tracks.get(self._who())
            spans = track.open if track is not None else ()
            found = [span for span in spans if span.name == name and span.category == category]
        return found[-1] if found else None

    # -- operations ---------------------------------------------------------------------------------------------

    def begin(self, name: str, category: str, args: dict[str, Any] | None = None) -> Span:
        """An operation begins here."""
        key = self._who()
        with self._lock:
            track = self._tracks.get(key) or self._adopt(key)
            span = Span(track, name, category, args, None)
            track.pending += 1
            span.since = self._clock()
        return span

    def end(self, span: Span) -> None:
        """It has ended.  Any thread."""
        with self._lock:
            track = span.track
            if track.pending:
                track.pending -= 1
            now = self._clock()
            # No call and no allocation between the test and the assignment: a finalizer may come in between.
            if track.serial == span.serial and span.since >= track.busy_until:
                track.busy_until = now
                number = track.number
            else:
                number = self._lane(span.since, now)
            full = self._keep((number, span.since, now, span.name, span.category, span.args, span.flow))
            if track.is_pooled and not track.open and not track.pending:
                self._release(track)
        if full:
            self._on_full()

    # -- what there is ------------------------------------------------------------------------------------------

    def take(self, most: int = _MAX_BATCH_SPANS) -> Batch | None:
        """The oldest spans, which are then the caller's; None where there are none."""
        with self._lock:
            if not self._events:
                return None
            events = self._events[:most]
            del self._events[:most]
            names, self._names = self._names, {}
            dropped, self._dropped = self._dropped, 0
        return names, dropped, events

    def _keep(self, event: Event) -> bool:
        if len(self._events) >= self._capacity:
            self._dropped += 1
            return True
        self._events.append(event)
        return len(self._events) >= self._enough

    # -- tracks -------------------------------------------------------------------------------------------------

    def _adopt(self, key: Any) -> Track:
        """A track for a task or thread that has nothing open; the one of lowest number that is free."""
        if len(self._tracks) >= self._sweep_at:
            self._sweep()
        is_thread = isinstance(key, int)
        if self._free[is_thread]:
            _, track = heapq.heappop(self._free[is_thread])
            track.key = key
        else:
            self._pooled[is_thread] += 1
            kind = "thread" if is_thread else "coroutine"
            track = Track(self._new_number(f"{kind} {self._pooled[is_thread]}"), key, is_pooled=True)
        self._tracks[key] = track
        return track

    def _release(self, track: Track) -> None:
        if self._tracks.get(track.key) is track:
            del self._tracks[track.key]
            heapq.heappush(self._free[isinstance(track.key, int)], (track.number, track))
            track.key = None

    def _sweep(self) -> None:
        """Frees the tracks of tasks that ended with something open: what was begun is never ended."""
        ended = [track for key, track in self._tracks.items() if not isinstance(key, int) and key.done()]
        for track in ended:
            track.open.clear()
            track.pending = 0
            self._release(track)
        self._sweep_at = max(1024, 2 * len(self._tracks))

    def _lane(self, since: int, until: int) -> int:
        """A line on which nothing is drawn after ``since``."""
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
        self._names[self._numbers] = name
        return self._numbers


def plain(args: dict[str, Any] | None) -> dict[str, Any] | None:
    """What of a span's arguments is worth showing: numbers and texts; of anything else its type.

    No ``repr``: of a tensor on a device it would wait for the device.
    """
    if not args:
        return None
    return {str(name)[:_MAX_TEXT_CHARS]: _plain(value) for name, value in list(args.items())[:_MAX_ARGUMENTS]}


def text(value: Any) -> str:
    """A name, whatever it was."""
    return value if type(value) is str and len(value) <= _MAX_TEXT_CHARS else str(value)[:_MAX_TEXT_CHARS]


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple) and len(value) <= _MAX_ARGUMENTS:
        return [_scalar(each) for each in value]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 53 else f"{value:.6g}" if abs(value) < 1 << 1000 else "a large number"
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, str):
        return str(value[:_MAX_TEXT_CHARS])
    return f"<{type(value).__name__}>"
