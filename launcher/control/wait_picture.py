"""A picture of a verdict's wait graph: boxes of similar processes, arrows to awaited objects, and their layout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from rlinf_async._inspection.state.collective_needs import Needs
from rlinf_async._inspection.state.descriptions import lines_of, names_of, seconds, what_of
from rlinf_async._inspection.state.needs import Need
from rlinf_async._inspection.state.run_report import ProcessReport, RunReport, TargetKind, from_data
from rlinf_async._inspection.state.wait_graph import WaitGraph, WaitNode, is_stopped

MAX_BOXES: Final = 48


@dataclass
class Box:
    """A process, several similar processes, or an awaited resource; ``lines`` are quoted from the verdict.

    ``state`` is ``waits``, ``runs``, ``idle``, ``stopped``, ``ended`` or ``thing``.  ``is_blamed`` is True if the
    verdict names the box.  A box that nothing waits for is in the first column; the others follow in order of distance.
    """

    name: str
    state: str
    what: str = ""
    age: str = ""
    lines: list[str] = field(default_factory=list)
    is_blamed: bool = False
    column: int = 0
    row: int = 0


@dataclass(frozen=True)
class Arrow:
    """A wait; ``is_coming`` is True if the awaited object may already be on its way."""

    start: int
    end: int
    kind: str
    is_coming: bool


def picture_of(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return ``boxes`` and ``arrows`` for the output of ``rlinf-ctl stuck --json``, and the count ``left_out``."""
    report = from_data(RunReport, verdict["report"])
    needs = Needs(WaitGraph(report))
    waits = {process.endpoint: _waits_of(needs, process) for process in report.processes}
    blamed = set(verdict["verdict"]["participants"])
    busy = set() if verdict["verdict"]["is_stuck"] else blamed
    shown = _shown(report, waits, blamed)
    alike: dict[Hashable, list[ProcessReport]] = {}
    for process in shown:
        arrows = frozenset((kind, end, coming) for kind, end, coming in waits[process.endpoint])
        signature = (
            process.group or process.endpoint,
            process.endpoint in blamed,
            _state(needs, process, busy),
            arrows,
        )
        alike.setdefault(signature, []).append(process)
    folded = list(alike.values())[:MAX_BOXES]
    boxes = [_box(needs, processes, blamed, busy) for processes in folded]
    places: dict[Hashable, int] = {process.endpoint: at for at, group in enumerate(folded) for process in group}
    found: dict[tuple[int, int, str], Arrow] = {}
    for at, processes in enumerate(folded):
        for kind, end, coming in waits[processes[0].endpoint]:
            if isinstance(end, str) and end not in places:
                places[end] = len(boxes)
                boxes.append(Box(end, "thing"))
            if end in places:
                found[at, places[end], kind] = Arrow(at, places[end], kind, coming)
    _lay_out(boxes, list(found.values()))
    return {
        "boxes": [asdict(box) for box in boxes],
        "arrows": [asdict(arrow) for arrow in found.values()],
        "left_out": max(0, len(alike) - MAX_BOXES),
    }


_Waits = list[tuple[str, int | str, bool]]
"""List of waits: the kind, the awaited endpoint or resource, and whether the latter may be on its way."""


def _waits_of(needs: Needs, process: ProcessReport) -> _Waits:
    found: dict[tuple[str, int | str, bool], None] = {}
    for node in needs.graph.of(process):
        for need in needs.of(node):
            end = _end_of(need)
            kind = node.wait.kind if node.wait is not None else "task"
            if end is not None and end != process.endpoint:
                found[kind, end, bool(need.coming)] = None
    return list(found)


def _end_of(need: Need) -> int | str | None:
    target = need.target
    if need.process is not None:
        return need.process.endpoint
    if target.endpoint and need.ended:
        return f"process {target.endpoint:x} ({need.ended})"
    words = {TargetKind.QUEUE: "channel", TargetKind.LOCK: "lock", TargetKind.WEIGHTS: "weights of"}
    words |= {TargetKind.NAME: "the name", TargetKind.COLLECTIVE: "collective"}
    return f"{words[target.kind]} {target.name}" if target.kind in words else None


def _shown(report: RunReport, waits: dict[int, _Waits], blamed: set[int]) -> list[ProcessReport]:
    """Return waiting, awaited and blamed processes: blamed ones first, then drivers."""
    ends = {end for each in waits.values() for _, end, _ in each}
    shown = [each for each in report.processes if waits[each.endpoint] or {each.endpoint} & (ends | blamed)]
    return sorted(shown, key=lambda each: (each.endpoint not in blamed, each.role != "driver", each.group, each.rank))


def _state(needs: Needs, process: ProcessReport, busy: set[int]) -> str:
    if needs.graph.end_of(process):
        return "ended"
    if is_stopped(process):
        return "stopped"
    nodes = needs.graph.of(process)
    if not nodes:
        return "idle"
    return "waits" if _foremost(nodes, process.endpoint in busy).waits else "runs"


def _foremost(nodes: Iterable[WaitNode], is_busy: bool) -> WaitNode:
    """Return a process's main activity: its oldest wait, or a running activity if the verdict calls it busy."""
    return min(nodes, key=lambda node: (node.waits is is_busy, node.wait is None, -(node.age or 0.0)))


def _box(needs: Needs, processes: list[ProcessReport], blamed: set[int], busy: set[int]) -> Box:
    nodes = [node for process in processes for node in needs.graph.of(process)]
    box = Box(names_of(processes), _state(needs, processes[0], busy), is_blamed=processes[0].endpoint in blamed)
    box.lines = lines_of(needs.graph, nodes)
    if end := needs.graph.end_of(processes[0]):
        box.what = end
    elif nodes:
        foremost = [
            _foremost(needs.graph.of(process), process.endpoint in busy)
            for process in processes
            if needs.graph.of(process)
        ]
        first = foremost[0]
        method = f"{first.activity.method}()" if first.activity is not None and first.activity.method else ""
        box.what = what_of(first.wait) if first.wait is not None else first.process.trouble or method
        box.age = seconds(node.age for node in foremost)
    return box


def _lay_out(boxes: list[Box], arrows: list[Arrow]) -> None:
    """Place boxes in columns by their distance from boxes that nothing waits for; a cycle starts at its first box."""
    following = defaultdict(list)
    for arrow in arrows:
        following[arrow.start].append(arrow.end)
    awaited = {arrow.end for arrow in arrows}
    placed: dict[int, int] = {}
    for starts in ([at for at in range(len(boxes)) if at not in awaited], *([at] for at in range(len(boxes)))):
        level = [at for at in starts if at not in placed]
        column = 0
        while level:
            placed |= dict.fromkeys(level, column)
            level = list(dict.fromkeys(end for at in level for end in following[at] if end not in placed))
            column += 1
    rows: dict[int, int] = defaultdict(int)
    for at, column in sorted(placed.items(), key=lambda each: (each[1], not boxes[each[0]].is_blamed, each[0])):
        boxes[at].column, boxes[at].row = column, rows[column]
        rows[column] += 1
