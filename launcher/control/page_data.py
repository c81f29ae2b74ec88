"""The page's data, from successive ``RecordedRun`` objects: complete, or as changes since an earlier snapshot.

A message is a JSON object whose times are microseconds since ``origin``, a time in seconds since the epoch::

    origin, begin, end    the recorded time range of the run
    names, names_at       new names of spans, and their offset in the table of names
    processes             maps keys to name, group, pid, ..., new ``spans`` and ``bubbles``, ``since`` and ``first``
    sections              the changed ones among summary, channels, versions, phases, troubles, verdict, picture
    logs                  maps the paths of changed logs to their last lines

A span is six numbers in ``spans``: begin, duration (-1: open), name, kind (plus 16: failed), lane, value.  A bubble is
two numbers in ``bubbles``: begin and duration.  For each process the page keeps the items that ended before ``since``
and began after ``first``, then adds the new items, so that the page holds exactly what the process's ring holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from rlinf_async._core.printable import plain
from rlinf_async._recorder.state.event_ring import EventKind
from rlinf_async._recorder.state.timeline import Timeline

from .page_sections import sections_of
from .recorded_run import RecordedRun
from .run_view import split_ranks

MAX_SPANS: Final = 300_000  # limit for a page over all processes, each of which keeps its latest spans

_SLACK_US: Final = 100_000
"""Largest delay with which a suspended thread may write an event to its ring after a later event."""

_MAX_LOG_CHARACTERS: Final = 2_000_000
FAILED: Final = 16


@dataclass(frozen=True)
class Snapshot:
    """The run's state at one moment, in the page's terms."""

    origin: int
    begin: int
    end: int
    names: list[str]
    processes: dict[str, dict[str, Any]]
    latest: dict[str, int]  # maps each process to the time of its last event
    sections: dict[str, Any]
    logs: dict[str, str]
    known_names: int

    def message(self, before: Snapshot | None = None) -> dict[str, Any]:
        processes, sections, logs, known = {}, {}, {}, 0
        if before is not None:
            sections, logs, known = before.sections, before.logs, before.known_names
        for key, process in self.processes.items():
            since = -math.inf if before is None or key not in before.latest else before.latest[key] - _SLACK_US
            is_new = since == -math.inf
            columns: dict[str, Any] = {"since": None if is_new else since}
            columns |= {name: process[name] if is_new else _since(process[name], since, n) for name, n in _COLUMNS}
            processes[key] = {**process, **columns}
        return {
            "origin": self.origin,
            "begin": self.begin,
            "end": self.end,
            "names": self.names[known : self.known_names],
            "names_at": known,
            "processes": processes,
            "sections": {name: each for name, each in self.sections.items() if sections.get(name, _NONE) != each},
            "logs": {path: text for path, text in self.logs.items() if logs.get(path) != text},
        }


_NONE: Final = object()
_COLUMNS: Final = (("spans", 6), ("bubbles", 2))


def _since(columns: list[float], since: float, width: int) -> list[float]:
    return [
        number
        for at in range(0, len(columns), width)
        if columns[at + 1] < 0 or columns[at] + columns[at + 1] >= since
        for number in columns[at : at + width]
    ]


class PageData:
    """Factory for snapshots of one run; a span's name keeps its number in all of them."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._origin = 0

    def __repr__(self) -> str:
        return f"<PageData [{len(self._names)} names]>"

    def snapshot(self, run: RecordedRun) -> Snapshot:
        """Return a snapshot of the run, live or ended; this takes about one second for 200 000 events."""
        taken = int(run.taken_at * 1e9)
        ends = {(str(death.get("process")), death.get("pid")): int(death["time"] * 1e9) for death in run.deaths}
        latest = max((ring.events[-1].time + ring.wall_offset for ring in run.rings if ring.events), default=taken)
        until = max(taken, latest) if run.is_alive else latest
        timelines = {}
        for ring in run.rings:
            died = ends.get((str(ring.identity.get("process")), ring.identity.get("pid")))
            timelines[_key(ring.identity)] = Timeline.of(ring, until if died is None else died, died)
        begin = min((timeline.begin for timeline in timelines.values() if timeline.begin), default=until)
        self._origin = self._origin or begin // 10**9
        most = max(1, MAX_SPANS // max(1, len(timelines)))
        processes = {key: self._process(timeline, most) for key, timeline in timelines.items()}
        for key, process in processes.items():
            name, pid = process["name"], process["pid"]
            process["ended"] = self._micros(ends[name, pid]) if (name, pid) in ends else None
            process["key"] = key
        return Snapshot(
            self._origin,
            self._micros(begin),
            self._micros(until),
            list(self._names),
            processes,
            {key: self._micros(timeline.latest) for key, timeline in timelines.items()},
            sections_of(run, list(timelines.values()), begin, until, self._micros),
            {path: _log(text) for path, text in sorted(run.logs.items())},
            len(self._names),
        )

    def _process(self, timeline: Timeline, most: int) -> dict[str, Any]:
        shown = timeline.spans[-most:]
        spans: list[float] = []
        for span in shown:
            duration = -1 if span.end is None else (span.end - span.begin) // 1000
            kind = int(span.kind) + (FAILED if span.failed else 0)
            value = int(span.value) if span.value == int(span.value) else span.value
            spans += (self._micros(span.begin), duration, self._number(span.name), kind, span.lane, value)
        is_cut = len(shown) < len(timeline.spans)
        first = shown[0].begin if is_cut else timeline.begin
        bubbles = [
            number for begin, end in timeline.bubbles[-most:] for number in (self._micros(begin), (end - begin) // 1000)
        ]
        group, ranks = split_ranks(timeline.process, ())
        identity = timeline.identity
        return {
            "name": timeline.process,
            "group": group,
            "rank": ranks[0] if ranks else -1,
            "node": identity.get("node"),
            "host": identity.get("host"),
            "pid": identity.get("pid"),
            "is_full": timeline.is_full or is_cut,
            "skipped": timeline.skipped,
            "first": self._micros(first) if first else None,
            "serves": any(span.kind is EventKind.SERVE for span in timeline.spans),
            "spans": spans,
            "bubbles": bubbles,
        }

    def _number(self, name: str) -> int:
        return self._names.setdefault(plain(name), len(self._names))

    def _micros(self, nanoseconds: int) -> int:
        return (nanoseconds - self._origin * 10**9) // 1000


def _key(identity: dict[str, Any]) -> str:
    return f"{identity.get('endpoint', 0):x}"


def _log(text: str) -> str:
    return "\n".join(plain(line) for line in text[-_MAX_LOG_CHARACTERS:].split("\n"))
