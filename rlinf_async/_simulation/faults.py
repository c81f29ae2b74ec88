"""``Faults`` that happen by themselves in a simulation, at moments and places that its seed chooses."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rlinf_async.errors import ConfigError

if TYPE_CHECKING:
    from rlinf_async._simulation.sim_cluster import SimCluster

_MINUTE_S: Final = 60.0


@dataclass(frozen=True)
class Faults:
    """How often what happens, per virtual minute on the average.

    Attributes:
        kills: a rank is killed.
        stops: a rank stands still for ``stop_s`` seconds.
        cuts: a node but node 0 is cut off for ``cut_s`` seconds.
        breaks: the sockets between a rank and its callers break.
        groups: whose ranks may be hit; None for all.

    Raises:
        ConfigError: a number is negative.
    """

    kills: float = 0.0
    stops: float = 0.0
    cuts: float = 0.0
    breaks: float = 0.0
    stop_s: float = 3.0
    cut_s: float = 6.0
    groups: Collection[str] | None = None

    def __post_init__(self) -> None:
        for name in ("kills", "stops", "cuts", "breaks", "stop_s", "cut_s"):
            if (value := getattr(self, name)) < 0:
                raise ConfigError(f"Faults({name}={value!r}): it cannot be negative")

    def begin(self, sim: SimCluster) -> None:
        """Has them happen."""
        acts: tuple[tuple[float, Callable[[SimCluster], None]], ...] = (
            (self.kills, self._kill),
            (self.stops, self._stop),
            (self.cuts, self._cut),
            (self.breaks, self._break),
        )
        for rate, act in acts:
            if rate:
                self._after(sim, rate, act)

    def _after(self, sim: SimCluster, rate: float, act: Callable[[SimCluster], None]) -> None:
        def happen() -> None:
            act(sim)
            self._after(sim, rate, act)

        sim.scheduler.after(sim.scheduler.random.expovariate(rate / _MINUTE_S), happen)

    def _rank(self, sim: SimCluster) -> tuple[str, int] | None:
        ranks = [rank for rank in sim.ranks if self.groups is None or rank[0] in self.groups]
        return sim.scheduler.random.choice(ranks) if ranks else None

    def _kill(self, sim: SimCluster) -> None:
        if (rank := self._rank(sim)) is not None:
            sim.kill(*rank)

    def _stop(self, sim: SimCluster) -> None:
        if (rank := self._rank(sim)) is not None:
            sim.stop(*rank, self.stop_s)

    def _cut(self, sim: SimCluster) -> None:
        if len(sim.nodes) > 1:
            sim.cut(sim.scheduler.random.randrange(1, len(sim.nodes)), self.cut_s)

    def _break(self, sim: SimCluster) -> None:
        if (rank := self._rank(sim)) is not None:
            sim.sever(*rank, sim.scheduler.random.choice(("shutdown", "close")))
