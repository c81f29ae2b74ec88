"""Runner of measurements on long-lived contestants, started on first use and again after a failure; prints the rows."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from . import contestant, measure
from .contestant import Contestant, ContestantError
from .measure import AGAINST, LIMIT, OURS, Case, Round
from .options import Options

Job = tuple[str, Mapping[str, Any]]
"""Name and arguments of a measurement."""


@dataclass(frozen=True)
class Measurement:
    """A case, its measurement, and measurements of the machine's own limits.

    Args:
        case: the row.
        work: measurement of ours and of the peers.
        arguments: arguments of the measurement; ``count`` is the number of repetitions.
        limit: measurement of the limit.
        beside: further measurements of limits, by the names that the case has for them.
        peers: names of the peers that support the measurement.
        peer_count: value of ``count`` for peers, if they are too slow for ours.
    """

    case: Case
    work: str
    arguments: Mapping[str, Any]
    limit: Job | None = None
    beside: Mapping[str, Job] = field(default_factory=dict)
    peers: Sequence[str] = contestant.PEERS
    peer_count: int | None = None

    def job(self, who: str) -> tuple[str, Job] | None:
        """Return the contestant and the measurement that give the samples of ``who``; None if it takes no part."""
        if who == LIMIT:
            return None if self.limit is None else (LIMIT, self.limit)
        if who in self.beside:
            return LIMIT, self.beside[who]
        if who == OURS:
            return OURS, (self.work, self.arguments)
        if who not in (*self.peers, AGAINST):
            return None
        count = {} if self.peer_count is None or who == AGAINST else {"count": self.peer_count}
        return who, (self.work, {**self.arguments, **count})


class Standing:
    """A contestant that starts on first use, and again after a failure.

    Args:
        start: function that starts its process.
        opening: measurement to begin with, if any.
    """

    def __init__(self, start: Callable[[], Contestant], opening: Job | None = None) -> None:
        self._start = start
        self._opening = opening
        self._contestant: Contestant | None = None
        self._lost: ContestantError | None = None

    def __enter__(self) -> Standing:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close(at_once=error is not None)

    def ask(self, work: str, **arguments: Any) -> Any:
        """Request a measurement and return its samples.

        Raises:
            ContestantError: it failed, or could not be started, now or earlier; the start is not tried twice.
        """
        if self._lost is not None:
            raise self._lost
        if self._contestant is None:
            self._open()
        assert self._contestant is not None
        try:
            return self._contestant.ask(work, **arguments)
        except ContestantError:
            self.close()
            raise

    def _open(self) -> None:
        try:
            self._contestant = self._start()
            if self._opening is not None:
                work, arguments = self._opening
                self._contestant.ask(work, **arguments)
        except ContestantError as error:
            self._lost = error
            self.close()
            raise

    def close(self, *, at_once: bool = False) -> None:
        if self._contestant is not None:
            self._contestant.close(at_once=at_once)
            self._contestant = None


def run(
    measurements: Iterable[Measurement], standing: Mapping[str, Standing], options: Options
) -> dict[str, list[Round]]:
    """Measure everything; return rounds by case."""
    return {
        measurement.case.name: measure.alternate(
            options.rounds, _measures(measurement, standing), warm_up=not options.quick
        )
        for measurement in measurements
    }


def _measures(measurement: Measurement, standing: Mapping[str, Standing]) -> dict[str, Callable[[], Sequence[float]]]:
    """Return the contestants that support the measurement, as a short trial shows."""
    found: dict[str, Callable[[], Sequence[float]]] = {}
    for who in (*standing, *measurement.beside):
        job = measurement.job(who)
        if job is None:
            continue
        name, (work, arguments) = job
        few = {**arguments, "count": min(20, arguments["count"])} if "count" in arguments else arguments
        if samples(name, standing[name], work, few):
            found[who] = functools.partial(samples, name, standing[name], work, arguments)
    return found


def samples(name: str, standing: Standing, work: str, arguments: Mapping[str, Any]) -> Sequence[float]:
    """Return a contestant's samples; none for a peer that failed.

    Raises:
        ContestantError: ours or the limits failed.
    """
    try:
        measured: list[float] = standing.ask(work, **arguments)
    except ContestantError as error:
        if name in (OURS, LIMIT):
            raise
        print(error, file=sys.stderr)
        return []
    return measured


def beside_each_peer(
    measurements: Sequence[Measurement], start: Callable[[str], Standing], options: Options
) -> dict[str, list[Round]]:
    """Run one session per peer, or one without: another peer would take CPU time even while idle.

    Args:
        start: function that starts each contestant, by name, including ``OURS`` and ``LIMIT``.
    """
    rounds: dict[str, list[Round]] = {measurement.case.name: [] for measurement in measurements}
    for peer in options.peers or [None]:
        names = [OURS, LIMIT] if peer is None else [OURS, peer, LIMIT]
        with contestant.ended_in_order(), ExitStack() as stack:
            standing = {name: stack.enter_context(start(name)) for name in names}
            for case, measured in run(measurements, standing, options).items():
                rounds[case] += measured
    return rounds


def print_rows(measurements: Iterable[Measurement], rounds: Mapping[str, list[Round]], options: Options) -> None:
    for measurement in measurements:
        case = measurement.case
        measure.print_row({**case.row(rounds[case.name]), "loop": options.loop})
