"""Table of the framework's own metrics: names, kinds, labels and meanings, as listed in ``docs/metrics.md``.

Names end with base units, as Prometheus requires. The values come from daemons' tables, from the kernel, and from cells
in processes' rings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .event_ring import SKIPPED as SKIPPED_NAME, MetricKind

_PROCESS: Final = ("group", "rank")


@dataclass(frozen=True)
class MetricFamily:
    """A metric of the framework: ``labels`` omits ``node``, which every metric has; ``about`` is the HELP text."""

    name: str
    about: str
    labels: tuple[str, ...] = ()
    kind: MetricKind = MetricKind.GAUGE


# fmt: off
NODE_UP: Final = MetricFamily("rlinf_node_up", "1 where the node's daemon has answered this scrape in time, else 0")
NODE_LINKS: Final = MetricFamily("rlinf_node_links", "Links to other nodes that are up")
LOOP_LAG: Final = MetricFamily("rlinf_daemon_loop_lag_seconds", "Duration of one turn of the daemon's loop, just now")
DEATHS: Final = MetricFamily(
    "rlinf_deaths_total", "Workers and their subprocesses that have ended unexpectedly", kind=MetricKind.COUNTER
)
RANKS: Final = MetricFamily("rlinf_ranks", "Workers of a group that are alive, stopped ones among them", ("group",))
AWAY: Final = MetricFamily(
    "rlinf_ranks_away", "Workers of a group that have died and are coming back (launch(restart=))", ("group",)
)
OPEN_CALLS: Final = MetricFamily("rlinf_open_calls", "Calls that a worker has not answered", _PROCESS)
CALL_AGE: Final = MetricFamily("rlinf_oldest_call_age_seconds", "Age of the oldest of these; 0 without any", _PROCESS)
MEMORY: Final = MetricFamily("rlinf_resident_memory_bytes", "Memory in which a process stands", _PROCESS)
CPU: Final = MetricFamily("rlinf_cpu_seconds_total", "Time of processors that it has had", _PROCESS, MetricKind.COUNTER)
CHANNEL_ITEMS: Final = MetricFamily("rlinf_channel_items", "Items in a channel that can be had", ("channel",))
CHANNEL_BYTES: Final = MetricFamily("rlinf_channel_bytes", "Bytes that count against its limit", ("channel",))
CHANNEL_PUTS: Final = MetricFamily("rlinf_channel_waiting_puts", "Puts that wait for room", ("channel",))
CHANNEL_GETS: Final = MetricFamily("rlinf_channel_waiting_gets", "Gets that wait for items", ("channel",))
EXPERIENCE_SAMPLES: Final = MetricFamily(
    "rlinf_experience_samples", "Samples of an experience: put = taken + present + leased + dropped (state)",
    ("experience", "state"),
)
DEVICE_USED: Final = MetricFamily("rlinf_device_memory_used_bytes", "Memory of a GPU that is used", ("device",))
DEVICE_MEMORY: Final = MetricFamily("rlinf_device_memory_capacity_bytes", "Memory that it has", ("device",))
DEVICE_LOAD: Final = MetricFamily("rlinf_device_busy_ratio", "Part of the last second in which it worked", ("device",))
WEIGHTS: Final = MetricFamily(
    "rlinf_weights_version", "Latest version of a model that a process has published, or applied (role)",
    (*_PROCESS, "model", "role"),
)
STALENESS: Final = MetricFamily(
    "rlinf_weights_staleness_versions", "Versions between what it has applied and the latest published one",
    (*_PROCESS, "model"),
)
SKIPPED: Final = MetricFamily(
    SKIPPED_NAME, "Operations that the flight recorder has left out, at a high rate",
    _PROCESS, MetricKind.COUNTER,
)
# fmt: on

ALL: Final = tuple(value for value in vars().values() if isinstance(value, MetricFamily))


def table() -> str:
    """Return every metric as a row of ``docs/metrics.md``."""
    rows = ["| metric | kind | labels | what it tells |", "|---|---|---|---|"]
    for family in ALL:
        labels = ", ".join(f"`{label}`" for label in ("node", *family.labels))
        rows.append(f"| `{family.name}` | {family.kind.name.lower()} | {labels} | {family.about} |")
    return "\n".join(rows)
