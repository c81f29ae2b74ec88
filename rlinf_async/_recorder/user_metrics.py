"""The user's own metrics: gauges and counters in the cells of this process's ring, from which daemons read them.

    self.metrics.gauge("return", task="cheetah").set(312.5)
    self.metrics.counter("episodes").add(8)

Metrics never fail a training run: a bad name, a bad value or an excess metric is logged once.
"""

from __future__ import annotations

import math
import reprlib
from typing import Final, TypeVar

from rlinf_async._core.own_logger import own_logger
from rlinf_async._recorder import recording
from rlinf_async._recorder.state.event_ring import MAX_CELLS, MAX_NAME_BYTES, EventRing, MetricKind
from rlinf_async._recorder.state.metric_names import cell_name, complaint

logger = own_logger(__name__)

_NAMES: Final = reprlib.Repr()
# Shorten names that are too long when the log quotes them.
_NAMES.maxstring = _NAMES.maxother = MAX_NAME_BYTES


class _UserMetric:
    """The value of one name with its labels, in the process's current ring; ``cell`` is empty for an invalid metric."""

    __slots__ = ("_cell",)
    kind: MetricKind

    def __init__(self, cell: str) -> None:
        self._cell = cell

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._cell or 'that is not kept'}>"

    def _nowhere(self, ring: EventRing | None) -> None:
        if not self._cell:
            return  # the reason has already been logged
        if ring is not None:
            _warn_full()
        else:
            _warn(
                "the metrics of this process are not kept: it has no flight recorder (RLINF_RECORDER_EVENTS=0, a full "
                "disk of the logs, a forked child, or no cluster)"
            )

    def _refuse(self, value: object) -> None:
        try:
            shown = reprlib.repr(value)
        except Exception:  # Python writes no int of more than 4300 digits
            shown = f"such {type(value).__name__}"
        _warn(f"metric {self._cell} keeps its value: {self.kind.name.lower()}s take no {shown}")


class Gauge(_UserMetric):
    """A value that goes up and down."""

    __slots__ = ()
    kind = MetricKind.GAUGE

    def set(self, value: float) -> None:
        """Set the value, in less than a microsecond. Any thread may call this; NaN and infinities are allowed."""
        ring = recording.ring
        if ring is None or not self._cell or (place := ring.cell(MetricKind.GAUGE, self._cell)) is None:
            self._nowhere(ring)
            return
        try:
            ring.store(place, value)
        except Exception:  # ``__float__`` of a user's class may raise anything
            self._refuse(value)


class Counter(_UserMetric):
    """A sum that only grows, from 0 in each run."""

    __slots__ = ()
    kind = MetricKind.COUNTER

    def add(self, amount: float = 1.0) -> None:
        """Add to the sum. Any thread may call this. Negative, infinite or non-numeric amounts are refused."""
        ring = recording.ring
        if ring is None or not self._cell or (place := ring.cell(MetricKind.COUNTER, self._cell)) is None:
            self._nowhere(ring)
            return
        try:
            number = float(amount)
        except Exception:
            number = math.nan
        if 0 <= number < math.inf:
            ring.add(place, number)
        else:
            self._refuse(amount)


MetricClass = TypeVar("MetricClass", Gauge, Counter)


class Metrics:
    """The metrics of this process, by name and labels."""

    def __init__(self) -> None:
        self._gauges: dict[object, Gauge] = {}
        self._counters: dict[object, Counter] = {}
        self._kinds: dict[str, MetricKind] = {}

    def __repr__(self) -> str:
        return f"<Metrics [{len(self._gauges)} gauges, {len(self._counters)} counters]>"

    def gauge(self, name: str, **labels: object) -> Gauge:
        """Return the gauge with this name and these labels, the same object each time.

        Args:
            labels: labels, each with few values, because every combination is one of at most 512 metrics.
        """
        try:
            key = (name, *labels, *map(str, labels.values())) if labels else name
            return self._gauges.get(key) or self._new(Gauge, self._gauges, key, name, labels)
        except Exception as error:  # the name is unhashable, or a label's value cannot be converted to a string
            return _unusable(Gauge, name, error)

    def counter(self, name: str, **labels: object) -> Counter:
        """Return the counter with this name and these labels, served as ``NAME_total``."""
        try:
            key = (name, *labels, *map(str, labels.values())) if labels else name
            return self._counters.get(key) or self._new(Counter, self._counters, key, name, labels)
        except Exception as error:
            return _unusable(Counter, name, error)

    def _new(
        self,
        cls: type[MetricClass],
        known: dict[object, MetricClass],
        key: object,
        name: str,
        labels: dict[str, object],
    ) -> MetricClass:
        if len(self._gauges) + len(self._counters) >= MAX_CELLS:
            _warn_full()
            return cls("")
        why = complaint(cls.kind, name, labels)
        if not why:
            name = name.removesuffix("_total")  # counters are served with this suffix either way
            if (earlier := self._kinds.setdefault(name, cls.kind)) != cls.kind:
                why = f"it is a {earlier.name.lower()} elsewhere: give one of the two another name"
        if why:
            return known.setdefault(key, _unusable(cls, name, why))
        return known.setdefault(key, cls(cell_name(name, labels)))


def _unusable(cls: type[MetricClass], name: object, why: object) -> MetricClass:
    _warn(f"metric {_NAMES.repr(name)} is not kept as a {cls.kind.name.lower()}: {why}")
    return cls("")


# This process's metrics; one ring serves all its clusters and workers.
METRICS: Final = Metrics()

_warned: set[str] = set()


def _warn(text: str) -> None:
    if text not in _warned and len(_warned) < MAX_CELLS:
        _warned.add(text)
        logger.warning("%s", text)


def _warn_full() -> None:
    _warn(
        f"further metrics of this process are not kept: there is room for {MAX_CELLS}, each combination of labels "
        "being one, and 64 KiB of names"
    )
