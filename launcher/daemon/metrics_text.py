"""The Prometheus text of all nodes' metrics, rendered by ``prometheus_client``; imported only on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, exposition
from prometheus_client.core import Metric

from rlinf_async._recorder.state import metric_table as table
from rlinf_async._recorder.state.event_ring import MetricKind
from rlinf_async._recorder.state.metric_names import served_name, split_cell

CONTENT_TYPE: Final = exposition.CONTENT_TYPE_LATEST


async def text_of(answers: Mapping[str, Mapping[str, Any] | None]) -> bytes:
    """Render each node's metrics (None if it did not answer) as text; let other tasks run after each family."""
    parts = []
    for metric in families(answers):
        parts.append(exposition.generate_latest(_One(metric)))
        await asyncio.sleep(0)
    return b"".join(parts)


class _One(CollectorRegistry):
    """Registry of a single family, the only part of a registry that ``generate_latest`` uses."""

    def __init__(self, metric: Metric) -> None:
        super().__init__(auto_describe=False)
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return [self._metric]


def families(answers: Mapping[str, Mapping[str, Any] | None]) -> list[Metric]:
    """Return the framework's metrics in the order of their table, then the user's, omitting empty families."""
    found = {family.name: _empty(family.name, family.kind, family.about) for family in table.ALL}
    labels = {family.name: ("node", *family.labels) for family in table.ALL}
    for node, answer in answers.items():
        found[table.NODE_UP.name].add_sample(table.NODE_UP.name, {"node": node}, float(answer is not None))
        if answer is None:
            continue
        for name, rows in answer["samples"].items():
            for *values, value in rows:
                described = dict(zip(labels[name], (node, *values), strict=True))
                found[name].add_sample(name, described, value)
        for cell, (kind, rows) in answer["cells"].items():
            name, more = split_cell(cell)
            name = served_name(MetricKind(kind), name)
            if name not in found:
                found[name] = _empty(name, MetricKind(kind), f"{MetricKind(kind).name.capitalize()} of the script's")
            for group, rank, value in rows:
                found[name].add_sample(name, {"node": node, "group": group, "rank": rank, **more}, value)
    _add_staleness(found[table.WEIGHTS.name], found[table.STALENESS.name])
    return [metric for metric in found.values() if metric.samples]


def _add_staleness(versions: Metric, staleness: Metric) -> None:
    """Add, for each process, how many versions its weights lag behind the latest published version."""
    latest: dict[str, float] = {}
    for _, labels, value, *_ in versions.samples:
        if labels["role"] == "published":
            latest[labels["model"]] = max(value, latest.get(labels["model"], value))
    for _, labels, value, *_ in versions.samples:
        if labels["role"] == "applied" and labels["model"] in latest:
            described = {label: labels[label] for label in ("node", *table.STALENESS.labels)}
            staleness.add_sample(table.STALENESS.name, described, max(0.0, latest[labels["model"]] - value))


def _empty(name: str, kind: MetricKind, about: str) -> Metric:
    # ``prometheus_client`` appends "_total" to the name of a counter.
    return Metric(name.removesuffix("_total") if kind == MetricKind.COUNTER else name, about, kind.name.lower())
