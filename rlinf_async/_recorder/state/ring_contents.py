"""``RingContents``: events and metrics in a flight recorder's ring, whose process may still write or have died."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple

from .event_ring import (
    CELL,
    CELLS_AT,
    EVENT,
    HEADER,
    LENGTH,
    MAGIC,
    MAX_CELLS,
    NAMES_AT,
    OTHER,
    SLOTS_AT,
    USED,
    EventKind,
    MetricKind,
    Phase,
    identity_of,
)

# A full ring's oldest events are skipped, because each thread may have been writing one of them.
_TORN: Final = 8


class RingEvent(NamedTuple):
    """An event in a ring; its time is in nanoseconds of the machine's monotonic clock. For ``value``, see
    ``EventKind``.

    Attributes:
        kind: ``END`` for the end of an operation; such an event has an empty name.
        operation: common number of an operation's begin and end.
    """

    time: int
    kind: EventKind
    phase: Phase
    operation: int
    name: str
    value: float


class RingMetric(NamedTuple):
    """A metric in a ring: its value, and its name with labels in Prometheus notation."""

    kind: MetricKind
    name: str
    value: float


@dataclass(frozen=True)
class RingContents:
    """The recorded data of one process.

    Attributes:
        identity: ``process`` ("actor:0", "driver"), ``run``, ``node``, ``endpoint``, ``pid``, ``host``.
        wall_offset: wall clock minus monotonic clock in nanoseconds at the ring's creation.
        events: the latest events, in order of time.
        is_full: true if older events were overwritten.
    """

    identity: dict[str, Any]
    wall_offset: int
    events: list[RingEvent]
    metrics: list[RingMetric]
    is_full: bool

    @classmethod
    def read(cls, data: bytes) -> RingContents:
        """Parse a ring; raise ValueError if the bytes are not a complete ring."""
        identity, slots, wall_offset = _header(data)
        names = _names(data)
        events, is_full = _events(data, slots, names)
        return cls(identity, wall_offset, events, _metrics(data, names), is_full)

    def __repr__(self) -> str:
        return f"<RingContents of {self.identity.get('process')} [{len(self.events)} events]>"


def has_metrics(cell: bytes) -> bool:
    return len(cell) == CELL.size and CELL.unpack(cell)[1] != 0


def metrics_of(data: bytes) -> list[RingMetric]:
    """Return the metrics in the first ``SLOTS_AT`` bytes of a ring; raise ValueError if the bytes are not a ring."""
    if len(data) < SLOTS_AT or not data.startswith(MAGIC):
        raise ValueError(f"no ring of a flight recorder: {len(data)} bytes that begin with {data[:8]!r}")
    return _metrics(data, _names(data))


def _header(data: bytes) -> tuple[dict[str, Any], int, int]:
    if len(data) < SLOTS_AT:
        raise ValueError(f"a flight recorder's ring has at least {SLOTS_AT} bytes, this has {len(data)}")
    magic, slots, _, wall_offset = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ValueError(f"no ring of a flight recorder: it begins with {magic!r} instead of {MAGIC!r}")
    if slots < 1 or slots & (slots - 1) or len(data) < SLOTS_AT + slots * EVENT.size:
        raise ValueError(f"a ring of {slots} slots has {SLOTS_AT + slots * EVENT.size} bytes, this has {len(data)}")
    return identity_of(data), slots, wall_offset


def _names(data: bytes) -> list[str]:
    names, at = [], NAMES_AT + USED.size
    end = min(NAMES_AT + USED.unpack_from(data, NAMES_AT)[0], CELLS_AT)
    while at + LENGTH.size <= end:
        begin = at + LENGTH.size
        at = begin + LENGTH.unpack_from(data, at)[0]
        names.append(data[begin : min(at, end)].decode(errors="replace"))
    return names


def _events(data: bytes, slots: int, names: list[str]) -> tuple[list[RingEvent], bool]:
    kinds, phases = {int(kind): kind for kind in EventKind}, {int(phase): phase for phase in Phase}
    found, used = [], 0
    for kind, phase, index, operation, value, time in EVENT.iter_unpack(data[SLOTS_AT : SLOTS_AT + slots * EVENT.size]):
        used += time != 0
        # Skip kinds from newer versions, and slots left half-written by a kill.
        if time and kind in kinds and phase in phases and math.isfinite(value):
            name = "" if phase in (Phase.END, Phase.FAILED) else names[index] if index < len(names) else OTHER
            found.append(RingEvent(time, kinds[kind], phases[phase], operation, name, value))
    found.sort(key=attrgetter("time"))
    is_full = used >= slots - 1  # number 0 is never used
    return (found[_TORN:] if is_full else found), is_full


def _metrics(data: bytes, names: list[str]) -> list[RingMetric]:
    kinds = {int(kind): kind for kind in MetricKind}
    cells = data[CELLS_AT : CELLS_AT + MAX_CELLS * CELL.size]
    return [
        RingMetric(kinds[kind], names[index], value)
        for index, kind, value in CELL.iter_unpack(cells)
        if kind in kinds and index < len(names)
    ]
