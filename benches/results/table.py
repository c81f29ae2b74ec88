"""Tables of final returns, of training returns at equal wall time, and of speed: Markdown from records."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from .intervals import Estimate, Statistic, estimate, interquartile_mean, mean, median
from .records import Run

NOTHING = "-"


def by_contestant(runs: Iterable[Run], labels: Mapping[str, str]) -> dict[str, list[Run]]:
    """Group runs by their contestants' labels, in the order of the labels, by seed; drop contestants without runs."""
    ordered = sorted(runs, key=lambda run: run.seed)
    groups = {label: [run for run in ordered if run.contestant == name] for name, label in labels.items()}
    return {label: group for label, group in groups.items() if group}


_ONE_SITTING: Final = timedelta(hours=2)


def alone(runs: Iterable[Run]) -> list[Run]:
    """Return the runs whose times count: those that had the same kind of machine to themselves."""
    found = [run for run in runs if run.jobs == 1]
    newest = max((datetime.fromisoformat(run.date) for run in found), default=None)
    return [run for run in found if newest is not None and newest - datetime.fromisoformat(run.date) <= _ONE_SITTING]


def equal_seconds(groups: Mapping[str, Sequence[Run]]) -> float | None:
    """Return the time at which the fastest contestant ends: the smallest median of training times."""
    ends = [statistics.median(run.training_seconds for run in alone(runs)) for runs in groups.values() if alone(runs)]
    return min(ends, default=None)


def final_returns(groups: Mapping[str, Sequence[Run]]) -> str:
    """Return the table of returns at equal samples, one row per contestant."""
    rows = [["", "runs", "mean", "median", "interquartile mean", "by seed"]]
    for label, runs in groups.items():
        values = [run.final_return for run in runs]
        by_seed = "; ".join(f"{run.seed}: {number(run.final_return)}" for run in runs)
        rows.append([label, str(len(runs)), *(_estimated(values, statistic) for statistic in _STATISTICS), by_seed])
    return markdown(rows)


def timed_returns(groups: Mapping[str, Sequence[Run]]) -> str | None:
    """Return the table of training returns at equal wall time; None if no run had the machine to itself."""
    seconds = equal_seconds(groups)
    if seconds is None:
        return None
    title = f"at {seconds:.0f} s: "
    rows = [["", "runs", title + "mean", "median", "interquartile mean", "seconds", "samples/s", "torch threads"]]
    for label, runs in groups.items():
        timed = alone(runs)
        values = [value for run in timed if (value := run.curve.at_seconds(seconds)) is not None]
        times = [run.training_seconds for run in timed]
        rates = [run.samples / run.training_seconds for run in timed]
        rows.append(
            [
                label,
                str(len(timed)),
                *(_estimated(values, statistic) for statistic in _STATISTICS),
                f"{statistics.median(times):.0f}" if times else NOTHING,
                number(statistics.median(rates)) if rates else NOTHING,
                "/".join(sorted({str(run.threads or "by worker") for run in timed})) or NOTHING,
            ]
        )
    return markdown(rows)


def number(value: float) -> str:
    """Format with three digits or more: ``-4.32``, ``43.2``, ``4,321``."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def shown(found: Estimate) -> str:
    """Format as ``-4.32 [-4.50, -4.10]``."""
    if found.low is None or found.high is None:
        return number(found.value)
    return f"{number(found.value)} [{number(found.low)}, {number(found.high)}]"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose head is the first row; all columns but the first are right-aligned."""
    head, *body = rows
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_STATISTICS: Sequence[Statistic] = (mean, median, interquartile_mean)


def _estimated(values: Sequence[float], statistic: Statistic) -> str:
    return shown(estimate(values, statistic)) if values else NOTHING
