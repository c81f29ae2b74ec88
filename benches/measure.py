"""Turns samples into result rows: medians, ratios within a round, targets, and a line of JSON per case."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

OURS: Final = "rlinf_async"
AGAINST: Final = "against"
"""Ours as another checkout has it."""
VERSIONS: Final = (OURS, AGAINST)
LIMIT: Final = "limit"
BEST: Final = "best peer"
ITSELF: Final = "itself"

Round = Mapping[str, Sequence[float]]
"""What one round measured: samples by contestant.  One that took no part is missing; one that failed has none."""


def percentile(samples: Sequence[float], rank: float) -> float:
    """The smallest sample that is not below ``rank`` per cent of them.

    Raises:
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("a percentile of no samples")
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(rank / 100 * len(ordered)) - 1)]


def alternate(count: int, measures: Mapping[str, Callable[[], Sequence[float]]], *, warm_up: bool) -> list[Round]:
    """Measures every contestant in every round; each round goes through them the other way round.

    What changes on the machine meanwhile then falls on all of them alike.

    Args:
        count: rounds that are kept.
        measures: by contestant, what gives its samples of one round.
        warm_up: a first round is thrown away.
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
    """A bound on the ratio of ours to another's: ``Target(0.8, "xoscar")`` is "at most 0.8 of xoscar's".

    Args:
        factor: the bound.
        of: a peer's name, that of something beside, ``LIMIT``, ``BEST`` for the peer that did best, or ``ITSELF`` for a
            bound on ours as it is measured.
        at_least: for rates, where more is better.
    """

    factor: float
    of: str
    at_least: bool = False

    def __str__(self) -> str:
        bound = f"{'>=' if self.at_least else '<='} {self.factor:g}"
        return bound if self.of == ITSELF else f"{bound} x {self.of}"

    def met(self, ratios: Mapping[str, float]) -> bool | None:
        """Whether the ratios of ours to the others' keep the bound; None where the other was not measured."""
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
    """One row before it is measured.

    Args:
        bench: the bench it belongs to.
        name: what is measured.
        unit: of the printed values.
        scale: printed value per measured one; ``1e6`` for microseconds out of seconds.
        more_is_better: a rate.
        limit: what the machine itself can do, in words; None where nothing is known.
        beside: other things that the machine can do, in words, by the names of what measures them.
        targets: all of them must hold.
        note: what a reader must know of the comparison.
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
        """The row: a median of every contestant's round medians, and ratios that compare within each round.

        A contestant that failed in some round is left out, and compared in those rounds in which it took part.

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
    """Whether every verdict that there is is true; None where there is none."""
    known = [verdict for verdict in verdicts if verdict is not None]
    return all(known) if known else None


def print_row(row: Mapping[str, Any]) -> None:
    print(json.dumps(row, ensure_ascii=False), flush=True)


def _median(rounds: Sequence[Round], name: str) -> float:
    return statistics.median(statistics.median(measured[name]) for measured in rounds if name in measured)


def _rounded(value: float) -> float:
    """Four digits: more would be noise."""
    return float(f"{value:.4g}")
