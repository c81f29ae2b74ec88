"""``Stage``: the cluster, groups, tasks and channels of a program that is played, which all of its acts use."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from rlinf_async import Channel, Cluster
from rlinf_async._simulation.sim_cluster import SimCluster
from tests.simulation.judgement import Violation
from tests.simulation.operations import Counters, Operation
from tests.simulation.program import Program

PATIENCE_S: Final = 200.0
"""Virtual seconds after which what still waits is taken to wait for ever."""


@dataclass
class Line:
    """A channel: one of those that have had its name."""

    number: int
    channel: Channel
    is_closed: bool = False


class Stage:
    """One program while it is played; mixins add its acts."""

    def __init__(self, sim: SimCluster, program: Program) -> None:
        self.cluster: Cluster
        self.sim = sim
        self.program = program
        self.nonces, self.numbers = itertools.count(), Counters()
        self.tasks: list[tuple[str, str, asyncio.Task[Any]]] = []
        self.lines: dict[str, list[Line]] = {}
        self.groups: dict[str, Any] = {}
        self.queues: dict[str, Any] = {}
        """Channels of families, by name."""
        self.stores: list[Any] = []
        """Experiences, by their numbers."""
        self.guests: Any = None
        """The group with few restarts, once it is launched."""
        self.streams: dict[int, tuple[Sequence[int], int, int]] = {}
        """By number: the ranks that stream, their items, and the one before which they fail."""
        self.window = 0
        """Items that a rank may stream ahead of its consumer."""
        self.killed: set[str] = set()
        self.random = random.Random(sim.seed)
        self.trains = False
        self.rolls_out: set[int] = set()
        self.node_died = False
        self.lost_by = inf
        """The moment at which the loss of a node has reached all that needs it."""
        self.loss = asyncio.Event()
        self.away_s = 0.0
        self.hung: list[Violation] = []
        self.book: list[Operation] = []
        self.views: list[Violation] = []
        self.left: list[Violation] = []

    def start(self, name: str, work: Coroutine[Any, Any, Any], meets: str = "") -> None:
        task = asyncio.get_running_loop().create_task(self._follow(name, work), name=name)
        self.tasks.append((name, meets, task))

    async def _follow(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except (TypeError, NameError, AttributeError) as error:  # of the step itself, which would claim nothing
            self.left.append(Violation("step", f"{name}: {error!r}"))
        except Exception:
            pass  # noted by the operation that it ends

    def script(self, name: str, who: tuple[str, int], method: str, *arguments: Any, meets: str = "") -> None:
        member = self.groups[who[0]][who[1]]

        async def work() -> None:
            await getattr(member, method)(*arguments)

        self.start(name, work(), meets)

    async def pass_time(self, which: Callable[[str], bool], seconds: float) -> None:
        """Until all of them have ended, and those that they have started."""
        until = asyncio.get_running_loop().time() + seconds
        while waiting := [task for _, meets, task in self.tasks if not task.done() and which(meets)]:
            if (left := until - asyncio.get_running_loop().time()) <= 0:
                return
            await asyncio.wait(waiting, timeout=left)

    async def settle(self, which: Callable[[str], bool], seconds: float) -> None:
        await self.pass_time(which, seconds)
        for name, meets, task in self.tasks:
            if not task.done() and which(meets):
                self.hung.append(Violation("hang", f"{name} has not ended {seconds:g} s later"))
