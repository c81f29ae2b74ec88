"""``Faults`` of a simulation: crashes, stops and network cuts at random times and places, chosen by the seed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from rlinf_async._simulation.scheduler import Scheduler
from rlinf_async.errors import ConfigError

_MINUTE_S: Final = 60.0


class FaultTarget(Protocol):
    scheduler: Scheduler

    @property
    def num_nodes(self) -> int: ...

    @property
    def ranks(self) -> list[tuple[str, int]]: ...

    def kill(self, group: str, rank: int) -> bool: ...

    def stop(self, group: str, rank: int, seconds: float) -> bool: ...

    def sever(self, group: str, rank: int, how: str) -> None: ...

    def cut(self, node: int, seconds: float) -> None: ...


@dataclass(frozen=True)
class Faults:
    """The average number of faults of each kind per virtual minute.

    Attributes:
        kills: faults that kill a rank.
        stops: faults that stop a rank for ``stop_s`` seconds.
        cuts: faults that cut off a node other than node 0 for ``cut_s`` seconds.
        breaks: faults that break the sockets between a rank and its callers.
        groups: names of the groups whose ranks may fail; None for all.

    Raises:
        ConfigError: a number is negative, infinite or NaN.
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
            if not 0 <= (value := getattr(self, name)) < inf:
                raise ConfigError(f"Faults({name}={value!r}): it must be a number, and not negative")

    def begin(self, sim: FaultTarget) -> None:
        acts: tuple[tuple[float, Callable[[FaultTarget], None]], ...] = (
            (self.kills, self._kill),
            (self.stops, self._stop),
            (self.cuts, self._cut),
            (self.breaks, self._break),
        )
        for rate, act in acts:
            if rate:
                self._after(sim, rate, act)

    def _after(self, sim: FaultTarget, rate: float, act: Callable[[FaultTarget], None]) -> None:
        def act_and_repeat() -> None:
            act(sim)
            self._after(sim, rate, act)

        sim.scheduler.after(sim.scheduler.random.expovariate(rate / _MINUTE_S), act_and_repeat)

    def _pick_rank(self, sim: FaultTarget) -> tuple[str, int] | None:
        ranks = [rank for rank in sim.ranks if self.groups is None or rank[0] in self.groups]
        return sim.scheduler.random.choice(ranks) if ranks else None

    def _kill(self, sim: FaultTarget) -> None:
        if (rank := self._pick_rank(sim)) is not None:
            sim.kill(*rank)

    def _stop(self, sim: FaultTarget) -> None:
        if (rank := self._pick_rank(sim)) is not None:
            sim.stop(*rank, self.stop_s)

    def _cut(self, sim: FaultTarget) -> None:
        if sim.num_nodes > 1:
            sim.cut(sim.scheduler.random.randrange(1, sim.num_nodes), self.cut_s)

    def _break(self, sim: FaultTarget) -> None:
        if (rank := self._pick_rank(sim)) is not None:
            sim.sever(*rank, sim.scheduler.random.choice(("shutdown", "close")))
