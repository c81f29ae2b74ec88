"""Time series of a whole run, computed from its processes' timelines: weight versions, channel fill, step times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from .event_ring import EventKind
from .timeline import Timeline

Steps = list[tuple[int, float]]  # a step function, in order of time: each value holds from its time onwards

_PUBLISHED: Final = "published "
_APPLIED: Final = "applied "


@dataclass(frozen=True)
class ModelVersions:
    """Versions of one model over time: the latest published version, and each process's applied version."""

    published: Steps = field(default_factory=list)
    applied: dict[str, Steps] = field(default_factory=dict)

    def staleness(self, process: str) -> Steps:
        merged = sorted([*((time, 0, v) for time, v in self.published), *((t, 1, v) for t, v in self.applied[process])])
        newest, own, found = 0.0, None, Steps()
        for time, is_own, version in merged:
            newest = max(newest, version)
            own = version if is_own else own
            if own is not None and (not found or found[-1][1] != newest - own):
                found.append((time, newest - own))
        return found


@dataclass(frozen=True)
class PhaseTimes:
    """The durations, in nanoseconds, of one phase: all served calls, or all user's spans, with the same name.

    An operation running at its process's death counts as failed, and ends at the death. ``windows`` has the median
    duration of the operations that ended in each window; None for a window in which none ended.
    """

    kind: EventKind
    name: str
    count: int
    total: int
    p50: float
    most: int
    failed: int
    windows: list[float | None]


def versions_of(timelines: Iterable[Timeline]) -> dict[str, ModelVersions]:
    points = sorted(
        (point.time, point.name, point.value, timeline.process)
        for timeline in timelines
        for point in timeline.points
        if point.kind is EventKind.VERSION
    )
    models: dict[str, ModelVersions] = defaultdict(ModelVersions)
    for time, name, version, process in points:
        if name.startswith(_PUBLISHED):
            published = models[name.removeprefix(_PUBLISHED)].published
            if not published or published[-1][1] < version:
                published.append((time, version))
        elif name.startswith(_APPLIED):
            models[name.removeprefix(_APPLIED)].applied.setdefault(process, []).append((time, version))
    return dict(models)


def fill_of_channels(timelines: Iterable[Timeline], items: Mapping[str, int]) -> dict[str, Steps]:
    """Return each channel's number of items over time: completed puts minus completed gets (a ``get_batch`` counts as
    one), over all processes.

    Args:
        items: known numbers of items at the end; for other channels the minimum is taken as 0.
    """
    changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for timeline in timelines:
        for span in timeline.spans:
            if span.kind in (EventKind.PUT, EventKind.GET) and span.end is not None and not span.failed:
                changes[span.name].append((span.end, 1 if span.kind is EventKind.PUT else -1))
    found: dict[str, Steps] = {}
    for name, series in sorted(changes.items()):
        fill, steps = 0, Steps()
        for time, change in sorted(series):
            fill += change
            if steps and steps[-1][0] == time:
                steps.pop()
            steps.append((time, fill))
        known = items.get(name)
        base = known - fill if known is not None else -min(0, min(value for _, value in steps))
        found[name] = [(time, max(0, value + base)) for time, value in steps]
    return found


def phases_of(timelines: Iterable[Timeline], begin: int, end: int, windows: int) -> list[PhaseTimes]:
    """Return the phases, longest total duration first; ``windows`` divides the time from ``begin`` to ``end``."""
    width = max(1, (end - begin + windows - 1) // windows)
    durations: dict[tuple[EventKind, str], list[tuple[int, int]]] = defaultdict(list)
    failed: dict[tuple[EventKind, str], int] = defaultdict(int)
    for timeline in timelines:
        for span in timeline.spans:
            ended = timeline.died if span.end is None else span.end
            is_phase = span.kind is EventKind.SERVE or span.kind is EventKind.SPAN
            if is_phase and ended is not None and begin <= ended and (span.end is None or ended <= end):
                durations[span.kind, span.name].append((ended, max(0, ended - span.begin)))
                failed[span.kind, span.name] += span.failed or span.end is None
    found = []
    for (kind, name), taken in durations.items():
        lengths = [length for _, length in taken]
        by_window: list[list[int]] = [[] for _ in range(windows)]
        for ended, length in taken:
            by_window[min((ended - begin) // width, windows - 1)].append(length)
        trend = [median(each) if each else None for each in by_window]
        count, total, most = len(lengths), sum(lengths), max(lengths)
        found.append(PhaseTimes(kind, name, count, total, median(lengths), most, failed[kind, name], trend))
    return sorted(found, key=lambda phase: -phase.total)


def thinned(steps: Sequence[tuple[int, float]], most: int) -> Steps:
    """Return about ``most`` steps that look the same in a plot: the lowest, highest and last of each stretch."""
    if len(steps) <= most:
        return list(steps)
    length = -(-len(steps) * 3 // most)
    found = Steps()
    for start in range(0, len(steps), length):
        part = steps[start : start + length]
        low, high = min(part, key=lambda step: step[1]), max(part, key=lambda step: step[1])
        found += sorted({low, high, part[-1]})
    return found
