"""``Fleet``, the worker of families of programs about whole clusters, and ``Guest``, whose group has few restarts."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import torch

from rlinf_async import (
    Cluster,
    DeadlineExceeded,
    NodePlacementStrategy,
    PeerLost,
    Restart,
    concurrent,
    idempotent,
)  # fmt: skip
from rlinf_async.weights import follow as follow_weights, publish
from tests.simulation.cluster_families import TRAINER
from tests.simulation.crew import Crew, excuse
from tests.simulation.families import CREW
from tests.simulation.subject import Subject, begin, follow

NEST: Final = "nest"
BROOD: Final = "brood"
"""Name of a group that a rank launches."""

NAME: Final = "fleet"
"""Name of the published weights."""

GUEST: Final = "guest"
"""Name of the group with few restarts."""

LATE_S: Final = 0.5
"""Seconds after which the last receiver joins a broadcast that waits for it."""

RUN_STEP: Final = 1000
"""Difference between the numbers of two runs of a trainer; the version is the remainder."""

births: Counter[str] = Counter()
"""Constructors so far, by rank; a book's."""


class Fleet(Crew):
    """Takes part in relayed broadcasts, and publishes or follows weights."""

    def __init__(self) -> None:
        super().__init__()
        self._uses_weights, self._talks_to_itself = asyncio.Lock(), asyncio.Lock()

    # -- broadcasts ---------------------------------------------------------------------------------------------

    async def relay_all(
        self, source: int, nonce: int, sizes: Sequence[int], patience: float | None, delay: float
    ) -> None:
        """One of all ranks, which get tensors of these sizes; with a ``patience`` it gives up that soon."""
        if delay:
            await asyncio.sleep(delay)
        value = (nonce, [_pattern(nonce, size) for size in sizes]) if self._rank == source else None
        operation = begin(self.name, "r_cast", nonce, source)

        async def work() -> Any:
            groups = [(CREW, list(range(self._world_size)))]
            async with asyncio.timeout(80.0 if patience is None else patience):
                return await self.broadcast(value, groups, src=(CREW, source), async_op=True)

        await follow(operation, work(), lambda found: [found[0], _is_pattern(*found)])

    async def send_self(self, nonce: int, size: int) -> None:
        """Sends itself a message, and receives it."""
        operation = begin(self.name, "r_self", nonce)

        async def work() -> Any:
            async with asyncio.timeout(20.0):
                sending = self.send((nonce, _pattern(nonce, size)), CREW, self._rank)
                found = await self.recv(CREW, self._rank)
                await sending
                alone = [(CREW, [self._rank])]
                again = await self.broadcast(found, alone, src=(CREW, self._rank), async_op=True)
            return [found[0] == again[0] == nonce, _is_pattern(nonce, [found[1], again[1]])]

        async with self._talks_to_itself:
            await follow(operation, work(), lambda found: found)

    async def give_tensor(self, rank: int, nonce: int, size: int, fits: str) -> None:
        """Sends a tensor to a place for it, which may not be one: of another size, or none at all."""
        # An object that waits for its window is refused, too; a smaller one has left by then.
        operation = begin(self.name, "r_object" if fits == "object" else "r_tensor", nonce, fits)
        send = self.send if fits == "object" else self.send_tensor
        async with asyncio.timeout(60.0):
            await follow(operation, send(_pattern(nonce, size), CREW, rank), lambda _: [True])
        excuse(operation, "ValueError")

    async def take_tensor(self, rank: int, nonce: int, size: int, fits: str) -> None:
        operation = begin(self.name, "r_tensor", nonce, fits)
        place = torch.zeros(size + (fits == "size"), dtype=torch.uint8)
        work = self.recv(CREW, rank) if fits == "kind" else self.recv_tensor(place, CREW, rank)
        async with asyncio.timeout(60.0):
            await follow(operation, work, lambda _: [_is_pattern(nonce, [place])])
        excuse(operation, "ValueError")

    async def hear_guest(self, rank: int, nonce: int, group: str = GUEST) -> None:
        operation = begin(self.name, "guest_talk", nonce, f"{group}:{rank}")
        async with asyncio.timeout(60.0):
            await follow(operation, self.recv(group, rank), lambda number: number)
        excuse(operation, "ClosedError", "WorkerDied")

    async def hear_nobody(self) -> None:
        """Waits for a message of a group that never comes."""
        with contextlib.suppress(DeadlineExceeded):
            await self.recv("nobody", 0, timeout=2.0)

    async def nest(self, nonce: int, node: int, seconds: float) -> None:
        """Has a group of its own for a while, which ends with it."""
        operation = begin(self.name, "nest", nonce)

        async def work() -> list[tuple[int, int]]:
            async with Cluster() as cluster:
                group = Guest.create_group(0).launch(cluster, NodePlacementStrategy([node]), name=NEST)
                async with group:
                    found = await group.answer(nonce, b"", 0.0)
                    await asyncio.sleep(seconds)
                    return list(found)

        await follow(operation, work(), lambda found: found)
        excuse(operation, "ValueError")  # another rank has such a group

    async def rear(self, listener: int, nonce: int, node: int) -> None:
        """Has a group that is started again until this rank ends, and whose rank talks to another one of the crew."""
        async with Cluster() as cluster:
            brood = Guest.create_group(0).launch(cluster, NodePlacementStrategy([node]), name=BROOD, restart="rank")
            async with brood:
                await brood.say(listener, nonce)
                await asyncio.sleep(60.0)

    def find_port(self, most: int | None) -> int:
        return int(self.acquire_free_port(most))  # type: ignore[call-overload]  # it blocks in a ``def`` method

    # -- weights ------------------------------------------------------------------------------------------------

    async def publish_weights(
        self, run: int, versions: int, pause: float, numbers: int, options: dict[str, Any]
    ) -> None:
        """Publishes weights, each number of which names the run and the version."""
        async with self._uses_weights:
            model = _model(numbers, 7.0)

            async def work() -> int:
                async with publish(model, to=CREW, name=NAME, **options) as weights:
                    for _ in range(versions):
                        await asyncio.sleep(pause)
                        model["changes"].fill_(float(run + weights.version + 1))
                        begin(self.name, "w_publish", run, weights.version + 1)
                        try:
                            await weights.send()
                        except (DeadlineExceeded, PeerLost):  # a follower was late or is gone; nothing was sent
                            begin(self.name, "w_refused", run, weights.version + 1)
                    report = await weights.delivered()
                    begin(self.name, "w_delivered", run, weights.version, sorted(report.per_worker))
                    return weights.version

            model["changes"].fill_(float(run + 1))
            begin(self.name, "w_publish", run, 1)
            await follow(begin(self.name, "w_train", run), work(), lambda version: version)

    async def follow_weights(self, nonce: int, numbers: int, reads: int, pause: float, options: dict[str, Any]) -> None:
        """Reads followed weights so many times."""
        async with self._uses_weights:
            model = _model(numbers, 0.0)

            async def work() -> None:
                async with (
                    asyncio.timeout(90.0),
                    follow_weights(model, of=TRAINER, name=NAME, timeout=30.0, **options) as weights,
                ):
                    for _ in range(reads):
                        async with weights.reading() as version:
                            numbers = sorted({float(each) for each in model["changes"].unique()})
                            begin(self.name, "w_read", nonce, version, numbers, bool((model["stays"] == 7).all()))
                        await asyncio.sleep(pause)

            operation = begin(self.name, "w_follow", nonce)
            await follow(operation, work())
            excuse(operation, "ClosedError")  # the trainer has left, after every rank has followed once


class Guest(Subject):
    """Does what its driver calls; its constructor may raise at one of its incarnations."""

    def __init__(self, frail: int) -> None:
        super().__init__()
        births[self.name] += 1
        begin(self.name, "guest_born")
        if self._rank == 0 and births[self.name] == frail:
            raise LookupError(f"incarnation {frail}")

    def answer(self, nonce: int, content: bytes, seconds: float) -> tuple[int, int]:
        begin(self.name, "guest_run", nonce)
        return nonce, self._rank

    async def answer_later(self, nonce: int, content: bytes, seconds: float) -> tuple[int, int]:
        begin(self.name, "guest_run", nonce)
        await asyncio.sleep(seconds)
        return nonce, self._rank

    @idempotent
    async def answer_again(self, nonce: int, content: bytes, seconds: float) -> tuple[int, int]:
        await asyncio.sleep(seconds)
        return nonce, self._rank

    async def answers(self, nonce: int, content: bytes, seconds: float) -> AsyncIterator[int]:
        for number in range(4):
            yield number
            await asyncio.sleep(seconds)

    async def say(self, rank: int, nonce: int) -> None:
        await asyncio.sleep(0.3)
        await self.send(nonce, CREW, rank)

    @idempotent
    async def answers_again(self, count: int, *, resume: Sequence[int] = ()) -> AsyncIterator[int]:
        for number in range(len(resume), count):
            yield number
            await asyncio.sleep(0.05)

    @concurrent
    async def stay_beside(self, nonce: int, content: bytes, seconds: float) -> tuple[int, int]:
        """Has a task of its own, and takes some time to clean up."""
        self._tasks = [*getattr(self, "_tasks", []), asyncio.create_task(asyncio.sleep(1.0))]
        try:
            await asyncio.sleep(seconds)
        finally:
            await asyncio.sleep(0.5)
        return nonce, self._rank

    async def refuse(self, nonce: int, content: bytes, seconds: float) -> None:
        """Raises on one rank, while the others wait."""
        if self._rank == self._world_size - 1:
            await asyncio.sleep(seconds)
            raise LookupError(f"call {nonce}")
        await asyncio.sleep(100)


class HookedGuest(Guest):
    """Has a hook of restarts, which takes some time."""

    def __init__(self, frail: int, hook_s: float) -> None:
        super().__init__(frail)
        self._hook_s = hook_s

    async def on_restart(self, restart: Restart) -> None:
        begin(self.name, "h_begun", restart.attempt, self._token, list(restart.ranks))
        await asyncio.sleep(self._hook_s)
        begin(self.name, "h_ended", restart.attempt, self._token)


def _model(numbers: int, value: float) -> dict[str, torch.Tensor]:
    """Return one tensor that each version changes, and one that none does."""
    return {"changes": torch.full((16,), value), "stays": torch.full((numbers,), value)}


def _pattern(nonce: int, size: int) -> torch.Tensor:
    return (torch.arange(size, dtype=torch.int64) * 31 + nonce).to(torch.uint8)


def _is_pattern(nonce: int, tensors: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(tensor, _pattern(nonce, tensor.numel())) for tensor in tensors)
