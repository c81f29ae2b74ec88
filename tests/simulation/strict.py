"""``Strict``, the worker of promises that are kept to the letter, and ``Scene``, in which one of them is shown."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rlinf_async import Cluster, NodePlacementStrategy, Restart, Worker, WorkerGroup, concurrent, idempotent
from rlinf_async._simulation.sim_cluster import SimCluster
from rlinf_async.testing import sleep

SEEN: list[tuple[Any, ...]] = []
"""What the ranks of the scene have noted: group, rank, kind, and more."""

SOON_S: Final = 2.0
"""Seconds in which what is to happen at once has happened on every node."""

LONG_S: Final = 500.0
"""Duration of methods that end because they are given up."""

_INCARNATIONS = itertools.count()


class Strict(Worker):
    """Notes what its methods do; ``act`` runs a function of the scene's."""

    def __init__(self, plan: Sequence[int] = ()) -> None:
        """``plan`` has the numbers of the incarnations of rank 0, from 1 on, whose constructor fails."""
        super().__init__()
        self._incarnation = next(_INCARNATIONS)
        self._others: dict[str, Any] = {}
        self.note("born")
        if self._rank == 0 and sum(each[:3] == (self._group_name, 0, "born") for each in SEEN) in plan:
            raise LookupError("a constructor that fails")

    def note(self, kind: str, *facts: Any) -> None:
        SEEN.append((self._group_name, self._rank, kind, *facts))

    async def find(self, group: str) -> Any:
        if group not in self._others:
            self._others[group] = await WorkerGroup.from_group_name(Strict, group)
        return self._others[group]

    def block(self, what: Any, seconds: float = 0.0, padding: bytes = b"") -> tuple[int, Any]:
        self.note("begins", what)
        sleep(seconds)
        self.note("ends", what)
        return self._rank, what

    async def stay(self, what: Any, seconds: float = LONG_S, fails: Sequence[int] = ()) -> tuple[int, Any]:
        """Raise on the ranks of ``fails``."""
        return await self._stay(what, seconds, fails)

    @concurrent
    async def stay_beside(self, what: Any, seconds: float = LONG_S, fails: Sequence[int] = ()) -> tuple[int, Any]:
        return await self._stay(what, seconds, fails)

    @idempotent
    async def stay_again(self, what: Any, seconds: float = LONG_S, fails: Sequence[int] = ()) -> tuple[int, Any]:
        return await self._stay(what, seconds, fails)

    async def _stay(self, what: Any, seconds: float, fails: Sequence[int]) -> tuple[int, Any]:
        self.note("begins", what)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.note("cancelled", what)
            raise
        if self._rank in fails:
            raise LookupError(f"{what} on rank {self._rank}")
        self.note("ends", what)
        return self._rank, what

    async def items(self, what: Any, count: int, pause: float = 0.0, fails: Sequence[int] = ()) -> AsyncIterator[int]:
        """Raise in place of the last item on the ranks of ``fails``."""
        self.note("begins", what)
        try:
            for number in range(count):
                if self._rank in fails and number == count - 1:
                    raise LookupError(f"{what} on rank {self._rank}")
                self.note("item", what, number)
                yield number
                if pause:
                    await asyncio.sleep(pause)
        finally:
            self.note("closed", what)

    @idempotent
    async def items_again(
        self, what: Any, count: int, pause: float, *, resume: Sequence[int] = ()
    ) -> AsyncIterator[int]:
        self.note("begins", what, list(resume))
        try:
            for number in range(len(resume), count):
                yield number
                await asyncio.sleep(pause)
        finally:
            self.note("closed", what)

    async def act(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        return await function(self, *arguments)

    def act_blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self, *arguments)

    def incarnation(self) -> int:
        return self._incarnation

    def on_close(self) -> None:
        self.note("on_close")


class Hooked(Strict):
    """Has a hook, which takes some time."""

    def __init__(self, seconds: float, fails: Sequence[int] = ()) -> None:
        super().__init__()
        self._hook_s, self._fails = seconds, fails

    async def on_restart(self, restart: Restart) -> None:
        self.note("hook", restart.attempt, restart.ranks, restart.counts)
        await asyncio.sleep(self._hook_s)
        if self._rank in self._fails:
            raise LookupError("a hook that fails")
        self.note("hooked", restart.attempt)


class BrokenPromise(Exception):
    """What a scene has shown."""


async def outcome(awaitable: Awaitable[Any]) -> Any:
    """Return a result, or an error."""
    try:
        return await awaitable
    except Exception as error:
        return error


def in_task(work: Awaitable[Any]) -> asyncio.Future[Any]:
    """Have the outcome of something, which is awaited from now on."""
    return asyncio.ensure_future(outcome(work))


async def gather(stream: Any, found: list[Any]) -> None:
    """Read a stream as fast as it comes."""
    async for item in stream:
        found.append(item)


async def read_slowly(stream: Any) -> None:
    async for _ in stream:
        await asyncio.sleep(0.1)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@dataclass
class Scene:
    """The cluster and the group of a promise.

    Attributes:
        nodes: of the cluster.
        places: node of each rank.
        group: the group, which is there.
        name: of the group.
        deaths: rank and ``returns`` of each death that the driver was told.
        back: the restarts that it was told.
    """

    sim: SimCluster
    cluster: Cluster
    rng: random.Random
    nodes: int
    places: list[int]
    group: Any
    name: str
    deaths: list[tuple[int, bool]]
    back: list[Restart]

    @property
    def size(self) -> int:
        return len(self.places)

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def rank(self) -> int:
        return self.rng.randrange(self.size)

    def of_all(self, what: Any) -> list[tuple[int, Any]]:
        """Return the results of a call of all ranks."""
        return [(rank, what) for rank in range(self.size)]

    def two_ranks(self) -> tuple[int, int]:
        one, other = self.rng.sample(range(self.size), 2)
        return one, other

    def others(self, *ranks: int) -> list[int]:
        return [rank for rank in range(self.size) if rank not in ranks]

    async def launch(self, name: str, places: Sequence[int], **options: Any) -> Any:
        """Launch one more group of the scene."""
        group = Strict.create_group().launch(self.cluster, NodePlacementStrategy(list(places)), name=name, **options)
        return await group

    def kill(self, rank: int) -> None:
        self.check(self.sim.kill(self.name, rank), f"rank {rank} is not there to be killed")

    async def die(self, rank: int) -> None:
        """Kill a rank, and wait until the driver is told."""
        told = len(self.deaths)
        self.kill(rank)
        await self.until(1.0, lambda: len(self.deaths) > told, "the death is told")

    def seen(self, kind: str, what: Any = None, rank: int | None = None, group: str = "") -> list[tuple[Any, ...]]:
        """Return notes of a kind, without their group."""
        return [
            each[1:]
            for each in SEEN
            if each[0] == (group or self.name) and each[2] == kind
            if (what is None or each[3:4] == (what,)) and (rank is None or each[1] == rank)
        ]

    def all_seen(self) -> list[tuple[Any, ...]]:
        return [each[1:] for each in SEEN if each[0] == self.name]

    def seen_of(self, rank: int) -> list[tuple[Any, ...]]:
        return [each for each in self.all_seen() if each[0] == rank]

    def ranks_of(self, kind: str, what: Any = None, group: str = "") -> list[int]:
        """Return the ranks of notes of a kind, each as often as it has noted that, in order of the ranks."""
        return sorted(each[0] for each in self.seen(kind, what, group=group))

    @staticmethod
    def check(holds: bool, text: str) -> None:
        if not holds:
            raise BrokenPromise(text)

    def same(self, found: Any, wanted: Any, text: str) -> None:
        self.check(found == wanted, f"{text}: {found!r}, not {wanted!r}")

    def is_error(self, found: Any, kind: type[Exception], text: str, *words: str) -> Any:
        """Check that this is an error of exactly this kind whose text has these words."""
        self.check(type(found) is kind, f"{text}: {found!r}, not {kind.__name__}")
        missing = [word for word in words if word not in str(found)]
        self.check(not missing, f"{text}: {found!r} does not say {missing}")
        return found

    async def until(self, seconds: float, condition: Callable[[], bool], text: str) -> float:
        """Wait for something; return the seconds that it took."""
        began = self.now
        while not condition():
            self.check(self.now - began <= seconds, f"{text} within {seconds:g} s")
            await asyncio.sleep(0.005)
        return self.now - began

    async def soon(self, work: Any, text: str, seconds: float = SOON_S) -> Any:
        """Return the outcome of something that ends soon."""
        task = work if isinstance(work, asyncio.Future) else in_task(work)
        await asyncio.wait([task], timeout=seconds)
        self.check(task.done(), f"{text} has not ended within {seconds:g} s")
        return task.result()

    def once(self, ranks: Sequence[int], kind: str, what: Any) -> None:
        """Check that just these ranks have noted that, once each."""
        self.same(self.ranks_of(kind, what), sorted(ranks), f"ranks where {what!r} {kind}")

    def doubles(self, kind: str) -> list[Any]:
        return [key for key, count in Counter((each[0], *each[2:3]) for each in self.seen(kind)).items() if count > 1]


Show = Callable[[Scene], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Promise:
    """A promise, and what its group is launched with.

    Attributes:
        sizes: numbers of ranks to choose from.
        spread: each rank has a node of its own, as far as there are.
        severs: it breaks sockets, which costs what a link in small does not keep.
        arguments: of the worker class.
    """

    show: Show
    sizes: Sequence[int]
    cls: type[Strict]
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    spread: bool = False
    severs: bool = False


PROMISES: dict[str, Promise] = {}


def promise(
    *sizes: int, cls: type[Strict] = Strict, arguments: tuple[Any, ...] = (), spread: bool = False,
    severs: bool = False, **options: Any,
) -> Callable[[Show], Show]:  # fmt: skip
    """Add a promise to the table, by the name of the function that shows it."""

    def add(show: Show) -> Show:
        PROMISES[show.__name__] = Promise(show, sizes or (2, 3), cls, arguments, options, spread, severs)
        return show

    return add
