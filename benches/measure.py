"""Converts samples into result rows: medians, ratios within a round, targets, and a line of JSON per case."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

OURS: Final = "rlinf_async"
AGAINST: Final = "against"
"""Name of our framework in another checkout."""
VERSIONS: Final = (OURS, AGAINST)
LIMIT: Final = "limit"
BEST: Final = "best peer"
ITSELF: Final = "itself"

Round = Mapping[str, Sequence[float]]
"""Samples of one round by contestant. A contestant that took no part is missing; one that failed has no samples."""


def percentile(samples: Sequence[float], rank: float) -> float:
    """Return the smallest sample that is not below ``rank`` per cent of the samples.

    Raises:
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("a percentile of no samples")
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(rank / 100 * len(ordered)) - 1)]


def alternate(count: int, measures: Mapping[str, Callable[[], Sequence[float]]], *, warm_up: bool) -> list[Round]:
    """Measure every contestant in every round, in alternating order.

    Changes in the machine's load then affect all contestants alike.

    Args:
        count: number of rounds to keep.
        measures: function that returns the samples of one round, by contestant.
        warm_up: True to discard a first round.
    """
    rounds: list[Round] = []
    for index in range(-1 if warm_up else 0, count):
        names = list(measures) if index % 2 == 0 else list(measures)[::-1]
        measured = {name: list(measures[name]()) for name in names}
        if index >= 0:
            rounds.append({name: measured[name] for name in measures})
    return rounds


@dataclass(frozen=True)
class Target:
    """A bound on a ratio to ours: ``Target(0.8, "xoscar")`` means "at most 0.8 of xoscar's".

    Args:
        factor: the bound.
        of: name of a peer or of a measurement beside, ``LIMIT``, ``BEST`` for the best peer, or ``ITSELF`` for a bound
            on our value itself.
        at_least: True for rates, where more is better.
    """

    factor: float
    of: str
    at_least: bool = False

    def __str__(self) -> str:
        bound = f"{'>=' if self.at_least else '<='} {self.factor:g}"
        return bound if self.of == ITSELF else f"{bound} x {self.of}"

    def met(self, ratios: Mapping[str, float]) -> bool | None:
        """True if our ratios to the other's keep the bound; None if the other was not measured."""
        if self.of == BEST:
            peers = [ratio for name, ratio in ratios.items() if name not in (LIMIT, ITSELF, AGAINST)]
            ratio = (min(peers) if self.at_least else max(peers)) if peers else None
        else:
            ratio = ratios.get(self.of)
        if ratio is None:
            return None
        return ratio >= self.factor if self.at_least else ratio <= self.factor


@dataclass(frozen=True)
class Case:
    """Description of a row to measure.

    Args:
        bench: name of the bench.
        name: name of the quantity.
        unit: unit of the printed values.
        scale: factor from a measured to a printed value; ``1e6`` for microseconds from seconds.
        more_is_better: True for rates.
        limit: description of the machine's own limit; None if unknown.
        beside: descriptions of other limits of the machine, by name of their measurement.
        targets: bounds that must all hold.
        note: remarks for the reader of the comparison.
    """

    bench: str
    name: str
    unit: str
    scale: float = 1.0
    more_is_better: bool = False
    limit: str | None = None
    beside: Mapping[str, str] = field(default_factory=dict)
    targets: Sequence[Target] = field(default=())
    note: str | None = None

    def row(self, rounds: Sequence[Round]) -> dict[str, Any]:
        """Return the row: the median of every contestant's round medians, and ratios that compare within each round.

        A contestant that failed in some rounds is compared in the others only.

        Raises:
            ValueError: ours was not measured.
        """
        everybody = dict.fromkeys(name for measured in rounds for name in measured)
        names = [name for name in everybody if all(measured.get(name, True) for measured in rounds)]
        if not rounds or not all(measured.get(OURS) for measured in rounds):
            raise ValueError(f"{self.bench} {self.name}: {OURS} was not measured")
        ours = [sample for measured in rounds for sample in measured[OURS]]
        ratios = {
            name: statistics.median(
                statistics.median(measured[OURS]) / statistics.median(measured[name])
                for measured in rounds
                if name in measured
            )
            for name in names
            if name != OURS
        }
        row: dict[str, Any] = {
            "bench": self.bench,
            "case": self.name,
            "unit": self.unit,
            "median": self._shown(_median(rounds, OURS)),
        }
        if len(ours) > len(rounds):
            row |= {f"p{rank}": self._shown(percentile(ours, rank)) for rank in (50, 90, 99)}
        row["n"] = len(ours)
        row["rounds"] = len(rounds)
        limited = self.limit is not None and LIMIT in ratios
        row["limit"] = {"name": self.limit, "value": self._shown(_median(rounds, LIMIT))} if limited else None
        row["ratio_to_limit"] = _rounded(ratios[LIMIT]) if limited else None
        if self.beside:
            row["beside"] = {
                name: {"name": words, "value": self._shown(_median(rounds, name)), "ratio": _rounded(ratios[name])}
                for name, words in self.beside.items()
                if name in ratios
            }
        if AGAINST in ratios:
            row["against"] = {"median": self._shown(_median(rounds, AGAINST)), "ratio": _rounded(ratios[AGAINST])}
        peers = {name: each for name, each in ratios.items() if name not in (LIMIT, AGAINST, *self.beside)}
        row["peers"] = {
            name: {"median": self._shown(_median(rounds, name)), "ratio": _rounded(ratio)}
            for name, ratio in peers.items()
        }
        row["target"] = " and ".join(map(str, self.targets)) or None
        ratios[ITSELF] = _median(rounds, OURS)
        bounded = {name: ratio for name, ratio in ratios.items() if name not in self.beside}
        row["met"] = all_of(target.met(ratios if target.of in self.beside else bounded) for target in self.targets)
        row["ahead"] = all_of(ratio > 1 if self.more_is_better else ratio < 1 for ratio in peers.values())
        if self.note is not None:
            row["note"] = self.note
        return row

    def _shown(self, value: float) -> float:
        return _rounded(value * self.scale)


def all_of(verdicts: Iterable[bool | None]) -> bool | None:
    """True if all known verdicts are true; None if there is none."""
    known = [verdict for verdict in verdicts if verdict is not None]
    return all(known) if known else None


def print_row(row: Mapping[str, Any]) -> None:
    print(json.dumps(row, ensure_ascii=False), flush=True)


def _median(rounds: Sequence[Round], name: str) -> float:
    return statistics.median(statistics.median(measured[name]) for measured in rounds if name in measured)


def _rounded(value: float) -> float:
    """Format with four digits: more would be noise."""
    return float(f"{value:.4g}")
