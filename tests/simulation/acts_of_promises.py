"""Acts that show promises to the letter, each on a group of its own, once the faults of a program are over."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final

from rlinf_async import NodePlacementStrategy
from rlinf_async._simulation.scheduler import SimulationError
from tests.simulation import (
    promises_of_calls,
    promises_of_locks,
    promises_of_messages,
    promises_of_restarts,
    promises_of_streams,
    strict,
)
from tests.simulation.judgement import Violation
from tests.simulation.stage import Stage
from tests.simulation.step import Step

_PATIENCE_S: Final = 300.0

_TABLES: Final = (
    promises_of_calls,
    promises_of_locks,
    promises_of_messages,
    promises_of_restarts,
    promises_of_streams,
)
"""Modules that fill ``PROMISES``."""


def draw_promises(seed: int) -> list[Step]:
    """Draw two promises for the end of a program, each by draws of its own: one that is added moves few others."""
    draws = {name: random.Random(f"{seed} {name}") for name in strict.PROMISES}
    names = sorted(draws, key=lambda name: draws[name].random())[:2]
    return [Step(0.0, "promise", (name, draws[name].randrange(1 << 20))) for name in names]


class PromiseActs(Stage):
    """Promises."""

    async def keep_promises(self) -> None:
        for step in draw_promises(self.sim.seed):
            if not self.node_died:
                name, seed = step.facts
                await self.do_promise(str(name), int(str(seed)))

    async def do_promise(self, name: str, seed: int) -> None:
        promise, rng, loop = strict.PROMISES[name], random.Random(seed), asyncio.get_running_loop()
        if promise.severs and self.program.is_small:
            return
        size, nodes = rng.choice(promise.sizes), self.program.nodes
        places = [rng.randrange(nodes) for _ in range(size)]
        if promise.spread:
            places = [(places[0] + rank) % nodes for rank in range(size)]
        strict.SEEN.clear()
        group_name = f"strict{loop.time():.0f}"
        spec = promise.cls.create_group(*promise.arguments)
        group = spec.launch(self.cluster, NodePlacementStrategy(places), name=group_name, **promise.options)
        deaths: list[tuple[int, bool]] = []
        back: list[Any] = []
        group.on_death(lambda death: deaths.append((death.rank, death.returns)))
        group.on_restart(back.append)
        scene = strict.Scene(self.sim, self.cluster, rng, nodes, places, group, group_name, deaths, back)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await group
                await promise.show(scene)
                await group.close()
        except (SimulationError, asyncio.CancelledError):
            raise
        except BaseException as error:
            text = str(error) if isinstance(error, strict.BrokenPromise) else f"{type(error).__name__}: {error}"
            self.hung.append(Violation("promise", f"{name}({seed}) {places}: {text}"))
            group.close()
