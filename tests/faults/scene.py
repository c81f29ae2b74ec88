"""The state of one program: its workers and channels, its waits, and what has been done to them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_async import Channel, Cluster, NodePlacementStrategy
from tests.faults.journal import Counters, Journal, Operation, read
from tests.faults.judgement import Facts
from tests.faults.subject import Subject
from tests.faults.waits import PATIENCE_S, Waits
from tests.faults.words import Words

_generations = itertools.count()


@dataclass
class Life:
    """A worker process of a program."""

    name: str
    group: Any
    pid: int
    journal: Path


@dataclass
class Incarnation:
    """A channel: one of those that have had its name."""

    number: int
    channel: Channel
    is_closed: bool = False


class HungError(Exception):
    """Something that a step needs does not end."""


class Scene:
    """What the steps of one program act upon.

    Attributes:
        words: what the driver's log says about waits.
        journal: the driver's own.
        channels: by name, the youngest last.
        live: the workers by their roles, ``a`` and ``b``; ``lives``, all that there were.
        replaced: those that have become something else.
        until: the loop's time at which the last fault is over.
    """

    def __init__(self, cluster: Cluster, daemon: int, words: Words, folder: Path) -> None:
        self.cluster = cluster
        self.daemon = daemon
        self.words = words
        self.waits = Waits()
        self.nonces, self.items = itertools.count(), Counters()
        self.channels: dict[str, list[Incarnation]] = {}
        self.live: dict[str, Life] = {}
        self.lives: list[Life] = []
        self.replaced: list[Life] = []
        self.killed: set[str] = set()
        self.discarded: set[int] = set()
        self.starved = self.daemon_died = False
        self.until = 0.0
        self._folder = folder
        self._path = folder / "driver"
        self.journal = Journal(str(self._path))

    async def launch(self, role: str) -> None:
        """A worker for a role; the name of its group is used once."""
        name = f"{role}{next(_generations)}"
        journal = self._folder / name
        group = Subject.create_group(str(journal)).launch(self.cluster, NodePlacementStrategy([0]), name=name)
        (pid,) = await self.now(f"the launch of {name}", group.pid())
        life = self.live[role] = Life(name, group, pid, journal)
        self.lives.append(life)

    def other(self, role: str) -> Life:
        """The worker that a role's messages and calls go to."""
        return self.live["b" if role == "a" else "a"]

    async def now(self, name: str, awaitable: Awaitable[Any]) -> Any:
        """Something that the program cannot go on without.

        Raises:
            HungError: it has not ended in time.
        """
        task = asyncio.ensure_future(awaitable)
        done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
        if not done:
            task.cancel()
            raise HungError(name)
        return task.result()

    def script(self, name: str, work: Any, meets: str = "", deadline: float | None = None) -> None:
        """Waits for a call that makes a worker do something."""

        async def wait() -> None:
            with self.journal.noted("script", name):
                async with asyncio.timeout(deadline):
                    await work

        self.waits.start(name, wait(), meets)

    def lasts(self, seconds: float) -> None:
        """A fault goes on for so long."""
        self.until = max(self.until, asyncio.get_running_loop().time() + seconds)

    # -- for the judgement --------------------------------------------------------------------------------------

    @property
    def facts(self) -> Facts:
        return Facts(frozenset(self.killed), self.starved, self.daemon_died, frozenset(self.discarded))

    def operations(self) -> list[Operation]:
        """What the driver and all workers have written."""
        found = read(self._path, "driver")
        for life in self.lives:
            found += read(life.journal, life.name) if life.journal.exists() else []
        return found

    def logs(self) -> list[Path]:
        return [Path(path) for life in self.lives for path in life.group.log_paths]


def send_signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


async def warm_up(cluster: Cluster) -> None:
    """Has the template that workers are forked from import what it does: that takes seconds, once."""
    async with Subject.create_group(os.devnull).launch(cluster, NodePlacementStrategy([0]), name="first") as group:
        await group.pid()
