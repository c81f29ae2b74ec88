"""Trace files: their validity, and queries on them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

# What the format requires of each kind of event, beside "ph", "name", "pid" and "tid".
_REQUIRED = {
    "X": {"ts": Decimal, "dur": Decimal, "cat": str},
    "s": {"ts": Decimal, "id": int, "cat": str},
    "f": {"ts": Decimal, "id": int, "cat": str, "bp": str},
    "i": {"ts": Decimal, "s": str},
    "M": {"args": dict},
}
_METADATA = {"process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index"}


@dataclass(frozen=True)
class Drawn:
    """A span as it stands in the file; times in microseconds, exactly."""

    process: str
    track: int
    name: str
    category: str
    begin: Decimal
    end: Decimal
    args: dict[str, Any]

    @property
    def seconds(self) -> float:
        return float(self.end - self.begin) / 1e6


class Trace:
    """A trace file that has been checked.

    Attributes:
        spans: in the order of their beginning.
        arrows: of calls, from caller to callee.
        processes: what they are called, without node and pid.

    Raises:
        AssertionError: it is not what the format requires; spans of one track overlap; an arrow has one end only.
    """

    def __init__(self, path: Path | str) -> None:
        document = json.loads(Path(path).read_text(), parse_float=Decimal)
        self.events: list[dict[str, Any]] = document["traceEvents"]
        _check_keys(self.events)
        names = {event["pid"]: event["args"]["name"] for event in self.events if event["name"] == "process_name"}
        tracks = {(event["pid"], event["tid"]) for event in self.events if event["name"] == "thread_name"}
        self.processes = {name.partition(" (")[0] for name in names.values()}
        drawn = []
        for event in self.events:
            if event["ph"] == "X":
                assert (event["pid"], event["tid"]) in tracks, f"a track without a name: {event}"
                process = names[event["pid"]].partition(" (")[0]
                end = event["ts"] + event["dur"]
                args = event.get("args", {})
                drawn.append(Drawn(process, event["tid"], event["name"], event["cat"], event["ts"], end, args))
        self.spans = sorted(drawn, key=lambda span: (span.begin, -span.end))
        _check_nesting(self.spans)
        self.arrows = self._check_arrows(names)

    def of(self, process: str, name: str) -> list[Drawn]:
        return [span for span in self.spans if span.process == process and span.name == name]

    def within(self, span: Drawn) -> list[Drawn]:
        """What lies in it on its track."""
        return [
            each
            for each in self.spans
            if each is not span
            and (each.process, each.track) == (span.process, span.track)
            and span.begin <= each.begin
            and each.end <= span.end
        ]

    def _check_arrows(self, names: dict[int, str]) -> list[tuple[Drawn, Drawn]]:
        ends: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
        for event in self.events:
            if event["ph"] in "sf":
                assert event["ph"] not in ends[event["id"]], f"two ends of one kind: {event}"
                ends[event["id"]][event["ph"]] = event
        found = []
        for number, both in ends.items():
            assert both.keys() == {"s", "f"}, f"arrow {number} has one end: {both}"
            assert both["s"]["ts"] <= both["f"]["ts"], f"arrow {number} goes back in time: {both}"
            found.append((self._at(both["s"], names), self._at(both["f"], names)))
        return found

    def _at(self, event: dict[str, Any], names: dict[int, str]) -> Drawn:
        """The innermost span of a call that an end of an arrow lies in."""
        process = names[event["pid"]].partition(" (")[0]
        around = [
            span
            for span in self.spans
            if (span.process, span.track, span.category) == (process, event["tid"], "call")
            and span.begin <= event["ts"] <= span.end
        ]
        assert around, f"an arrow's end in no span: {event}"
        return around[-1]


def _check_keys(events: list[dict[str, Any]]) -> None:
    for event in events:
        assert isinstance(event["name"], str), event
        assert event["name"], event
        assert type(event["pid"]) is int, event
        assert type(event["tid"]) is int, event
        for key, kind in _REQUIRED[event["ph"]].items():
            assert isinstance(event[key], kind), event
        if event["ph"] == "M":
            assert event["name"] in _METADATA, event
        elif "args" in event:
            assert isinstance(event["args"], dict), event
    named = Counter((event["pid"], event["tid"], event["name"]) for event in events if event["ph"] == "M")
    assert set(named.values()) <= {1}, named
    described = {event["pid"] for event in events if event["name"] == "process_name"}
    assert {event["pid"] for event in events} == described


def _check_nesting(spans: list[Drawn]) -> None:
    """On one track each span lies in another or beside it."""
    open_on: dict[tuple[str, int], list[Drawn]] = defaultdict(list)
    for span in spans:
        around = open_on[span.process, span.track]
        while around and around[-1].end <= span.begin:
            around.pop()
        assert not around or span.end <= around[-1].end, f"{span} overlaps {around[-1]}"
        around.append(span)
