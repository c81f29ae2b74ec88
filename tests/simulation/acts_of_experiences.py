"""Acts of experiences: puts, takes, versions, wishes; at the end a look at what is left, and a close."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlinf_async import Experience
from tests.simulation import experiencing, subject
from tests.simulation.families import CREW
from tests.simulation.judgement import Violation
from tests.simulation.stage import Stage


@dataclass
class Store:
    """An experience of a program.

    Attributes:
        version: the latest that rank 0 of the crew was told to set.
        content: the numbers of the samples that were there at the end, and what had been dropped.
    """

    number: int
    experience: Experience
    group: int
    max_staleness: int
    keeps_short: bool
    version: int = 0
    is_closed: bool = False
    content: tuple[list[int], int, int] | None = None


class ExperienceActs(Stage):
    """Experiences; the trainer is rank 0 of the crew."""

    async def do_e_open(self, group: int, max_staleness: int, maxsize: int, timeout: float | None, short: Any) -> None:
        number = len(self.stores)
        experience = Experience.create(
            f"e{number}", group, max_staleness, experiencing.LEASE_S, maxsize,
            group_timeout=timeout, short_groups=short, node_rank=number % self.program.nodes, cluster=self.cluster,
        )  # fmt: skip
        self.stores.append(Store(number, experience, group, max_staleness, short == "take"))

    async def do_e_put(self, who: Any, store: int, count: int, name: int, lag: int, how: str, key: Any) -> None:
        where = self.stores[store]
        numbers = [self.numbers.next(("experience", store)) for _ in range(count)]
        facts = (where.experience, store, numbers, name, lag, how, key)
        self._do(who, "contribute", facts)

    async def do_e_take(self, who: Any, store: int, times: int, groups: int, how: str, key: Any) -> None:
        self._do(who, "consume", (self.stores[store].experience, store, times, groups, how, key))

    async def do_e_version(self, store: int, by: int, restart: bool) -> None:
        where = self.stores[store]
        where.version = max(0, where.version - 2) if restart else where.version + by
        facts = (where.experience, store, where.version, restart)
        self.script(f"a version of experience {store}", (CREW, 0), "advance", *facts)

    def _do(self, who: Any, method: str, facts: tuple[Any, ...]) -> None:
        if who == "driver":
            work = getattr(experiencing, method)("driver", *facts)
            self.start(f"{method} of experience {facts[1]}", work, "channel")
        else:
            self.script(f"{method} of {who} to experience {facts[1]}", who, method, *facts, meets="channel")

    async def do_e_close(self, store: int, discard: bool) -> None:
        where = self.stores[store]
        where.is_closed = True
        operation = subject.begin("driver", "e_close", store)
        await subject.follow(operation, where.experience.aclose(discard=discard))
        if operation.error is not None and operation.error[0] == "ClosedError":
            operation.value, operation.error = "ClosedError", None

    async def close_experiences(self) -> None:
        """Look at what is left, and close them, so that whatever waits there ends."""
        for store in self.stores:
            if not store.is_closed:
                await self._look_at(store)
                await self.do_e_close(store.number, True)

    async def _look_at(self, store: Store) -> None:
        try:
            stats = await store.experience.stats()
            state = await store.experience.state_dict()
        except Exception:
            return  # of a lost node
        dropped = sum(stats.dropped.values())
        # Every take has ended long ago, or its lease has.
        if stats.put != stats.taken + stats.present + stats.leased + dropped or stats.leased:
            self.hung.append(Violation("counts", f"experience {store.number}: {stats}"))
        store.content = [number for *_, (_, number, *_) in state["samples"]], dropped, stats.taken
