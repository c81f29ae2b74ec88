"""The page's sections besides the ranks' timelines: summary, channels, versions, phases, troubles, verdict."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, Final

from rlinf_async._core.printable import plain
from rlinf_async._recorder.state.event_ring import EventKind
from rlinf_async._recorder.state.run_series import Steps, fill_of_channels, phases_of, thinned, versions_of
from rlinf_async._recorder.state.timeline import Timeline

from .recorded_run import RecordedRun
from .wait_picture import picture_of

MAX_STEPS: Final = 600  # largest number of changes that a chart shows for one series

_WINDOWS: Final = 48
_MAX_FAILED: Final = 300
_MAX_PHASES: Final = 60

Micros = Callable[[int], int]  # converts nanoseconds since the epoch into microseconds on the page's clock


def sections_of(
    run: RecordedRun, timelines: Sequence[Timeline], begin: int, end: int, micros: Micros
) -> dict[str, Any]:
    items = {} if run.status is None else _items(run.status)
    experiences = _experiences(run.status)
    return {
        "summary": _summary(run),
        "channels": [*_channels(timelines, items, micros, {each["name"] for each in experiences}), *experiences],
        "versions": _versions(timelines, micros),
        "phases": _phases(timelines, begin, end),
        "troubles": _troubles(run, timelines, micros),
        "verdict": None if run.verdict is None else _verdict(run.verdict["verdict"]),
        "picture": None if run.verdict is None else _cleaned(picture_of(run.verdict)),
    }


def _channels(
    timelines: Sequence[Timeline], items: dict[str, int], micros: Micros, experiences: Container[str]
) -> list[dict[str, Any]]:
    """Return item counts over time; if events were skipped, only the status knows a channel's content."""
    is_exact = not any(timeline.is_full for timeline in timelines)
    left_out = sum(timeline.skipped for timeline in timelines)
    return [
        {
            "name": plain(name),
            "is_exact": is_exact,
            "left_out": left_out,
            "now": items.get(name) if left_out else steps[-1][1],
            "steps": [] if left_out else _steps(steps, micros),
        }
        for name, steps in fill_of_channels(timelines, items).items()
        if name not in experiences
    ]


def _experiences(status: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [
        {
            "name": plain(queue["name"]),
            "now": queue["items"],
            "ledger": ", ".join(f"{count} {state}" for state, count in queue["ledger"].items()),
        }
        for queue in (status or {}).get("queues", ())
        if queue.get("ledger")
    ]


def _items(status: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for queue in status.get("queues", ()):
        found[queue["name"]] = found.get(queue["name"], 0) + queue["items"]
    return found


def _summary(run: RecordedRun) -> dict[str, Any]:
    nodes = [
        {"node": node.get("node"), "name": node.get("name"), "host": node.get("host"), "versions": node.get("versions")}
        for node in run.nodes
    ]
    return {
        "run": run.run,
        "is_alive": run.is_alive,
        "taken_at": run.taken_at,
        "events": sum(len(ring.events) for ring in run.rings),
        "nodes": _cleaned(nodes),
        "missing": _cleaned(run.missing),
    }


def _versions(timelines: Sequence[Timeline], micros: Micros) -> list[dict[str, Any]]:
    return [
        {
            "model": plain(model),
            "published": _steps(versions.published, micros),
            "applied": {
                process: {
                    "version": steps[-1][1],
                    "since": micros(steps[-1][0]),
                    "behind": _steps(versions.staleness(process), micros),
                }
                for process, steps in sorted(versions.applied.items(), key=lambda each: _by_rank(each[0]))
            },
        }
        for model, versions in sorted(versions_of(timelines).items())
    ]


def _by_rank(process: str) -> tuple[str, int]:
    group, _, rank = process.rpartition(":")
    return group, int(rank) if rank.isdecimal() else -1


def _steps(steps: Steps, micros: Micros) -> list[tuple[int, float]]:
    return [(micros(time), value) for time, value in thinned(steps, MAX_STEPS)]


def _phases(timelines: Sequence[Timeline], begin: int, end: int) -> list[dict[str, Any]]:
    """Return the phases, with durations in microseconds."""
    return [
        {
            "name": plain(phase.name),
            "is_call": phase.kind is EventKind.SERVE,
            "count": phase.count,
            "total": phase.total // 1000,
            "p50": round(phase.p50 / 1000),
            "most": phase.most // 1000,
            "failed": phase.failed,
            "windows": [None if each is None else round(each / 1000) for each in phase.windows],
        }
        for phase in phases_of(timelines, begin, end, _WINDOWS)[:_MAX_PHASES]
    ]


def _troubles(run: RecordedRun, timelines: Sequence[Timeline], micros: Micros) -> list[dict[str, Any]]:
    """Return deaths, failed operations and notes about long waits, latest first."""
    found: list[dict[str, Any]] = []
    for death in run.deaths:
        entry = {"kind": "death", "process": str(death.get("process", "?")), "text": str(death.get("text", ""))}
        found.append({**entry, "time": micros(int(death["time"] * 1e9)), "more": _words(death.get("last_words"))})
    for timeline in timelines:
        for span in timeline.spans:
            if span.failed and span.end is not None:
                text = f"{span.kind.name.lower()} {span.name} failed"
                entry = {"kind": "failed", "process": timeline.process, "text": text, "more": ""}
                found.append({**entry, "time": micros(span.end)})
        for point in timeline.points:
            if point.kind is EventKind.WORD:
                entry = {"kind": "wait", "process": timeline.process, "text": point.name, "more": ""}
                found.append({**entry, "time": micros(point.time)})
    found.sort(key=lambda trouble: (trouble["kind"] != "death", -trouble["time"]))
    shown: list[dict[str, Any]] = _cleaned(found[:_MAX_FAILED])
    return sorted(shown, key=lambda trouble: -trouble["time"])


def _words(words: Any) -> str:
    return "\n".join(map(str, words)) if isinstance(words, list) else str(words or "")


def _verdict(verdict: dict[str, Any]) -> dict[str, Any]:
    fields = {name: verdict[name] for name in ("kind", "headline", "lines", "advice", "is_stuck")}
    cleaned: dict[str, Any] = _cleaned(fields)
    return cleaned


def _cleaned(data: Any) -> Any:
    """Return the data with control characters removed from its strings."""
    if isinstance(data, str):
        return "\n".join(plain(line) for line in data.split("\n"))
    if isinstance(data, dict):
        return {_cleaned(key): _cleaned(each) for key, each in data.items()}
    if isinstance(data, list | tuple):
        return [_cleaned(each) for each in data]
    return data
