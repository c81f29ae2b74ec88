"""The worker that simulated programs are about, and the book in which all processes note what they do."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import torch

from rlinf_async import Channel, Restart, Worker, WorkerGroup, idempotent
from rlinf_async.testing import sleep
from rlinf_async.weights import follow as follow_weights, publish
from tests.simulation.operations import Counters, Operation, all_of

BOOK: list[Operation] = []
"""What every process of the program that is being played has begun, in that order."""


ANY_RANK = "any rank"
"""Target of a call that is noted before its rank is known; such calls have no order."""

_TOKENS = itertools.count()
_SENT, _WANTED = Counters(), Counters()
"""Numbers of messages, and of receives, of each pair: a rank that comes back goes on where it was."""


def clear() -> None:
    """Begins a book."""
    global _SENT, _WANTED
    BOOK.clear()
    _SENT, _WANTED = Counters(), Counters()


def begin(who: str, kind: str, *facts: Any) -> Operation:
    operation = Operation(who, kind, list(facts))
    BOOK.append(operation)
    return operation


@contextlib.contextmanager
def noted(who: str, kind: str, *facts: Any) -> Iterator[Operation]:
    """An operation that ends with the block."""
    operation = begin(who, kind, *facts)
    try:
        yield operation
    except BaseException as error:
        if type(error).__name__ != "SimulatedDeath":  # then it has not ended
            operation.ended, operation.error = True, (type(error).__name__, str(error)[:300])
        raise
    operation.ended = True


class Subject(Worker):
    """Does what it is told, and notes it."""

    def __init__(self) -> None:
        super().__init__()
        self.name = f"{self._group_name}:{self._rank}"
        self._groups: dict[str, Any] = {}
        self._cancelled: set[int] = set()
        self._token = next(_TOKENS)
        self._attempts = 0

    # -- calls --------------------------------------------------------------------------------------------------

    def echo(self, nonce: int, size: int) -> tuple[int, bytes]:
        begin(self.name, "run", nonce)
        return nonce, bytes(size)

    async def echo_later(self, nonce: int, size: int, seconds: float) -> tuple[int, bytes]:
        begin(self.name, "run", nonce)
        await asyncio.sleep(seconds)
        return nonce, bytes(size)

    @idempotent
    async def echo_again(self, nonce: int, size: int, seconds: float) -> tuple[int, bytes]:
        await asyncio.sleep(seconds)
        return nonce, bytes(size)

    @idempotent
    async def echo_anywhere(self, nonce: int, size: int, limit: int | None, seconds: float) -> tuple[int, bytes]:
        with self._attempt(nonce, limit):
            await asyncio.sleep(seconds)
        return nonce, bytes(size)

    @idempotent
    async def count_on(
        self, nonce: int, count: int, limit: int | None, *, resume: Sequence[Any] = ()
    ) -> AsyncIterator[tuple[int, int]]:
        with self._attempt(nonce, limit):
            assert [number for _, number in resume] == list(range(len(resume))), "items that came otherwise"
            for number in range(len(resume), count):
                await asyncio.sleep(0.01)
                yield nonce, number

    @contextlib.contextmanager
    def _attempt(self, nonce: int, limit: int | None) -> Iterator[None]:
        """A call that any rank could have taken, beside others of which this one has."""
        self._attempts += 1
        begin(self.name, "attempt", nonce, self._attempts if limit is not None and self._attempts > limit else 0)
        try:
            yield
        finally:
            self._attempts -= 1

    async def wait_long(self, nonce: int) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self._cancelled.add(nonce)
            raise

    async def begin_task(self, seconds: float, fails: bool) -> None:
        async def task() -> None:
            await asyncio.sleep(seconds)
            if fails:
                raise ValueError("a task of its own")

        self.background(task())

    def token(self) -> int:
        """Which incarnation this is."""
        return self._token

    def was_cancelled(self, nonce: int) -> tuple[int, bool]:
        return self._token, nonce in self._cancelled

    async def count(self, nonce: int, count: int, size: int) -> AsyncIterator[tuple[int, int, int]]:
        begin(self.name, "run", nonce)
        for number in range(count):
            yield nonce, number, size

    async def ask_peer(self, peer: str, rank: int, nonces: Sequence[int], size: int) -> None:
        """Calls of this worker on another one."""
        if peer not in self._groups:
            async with asyncio.timeout(60.0):  # its launch may have failed, and whoever asks for it waits for another
                self._groups[peer] = await WorkerGroup.from_group_name(Subject, peer)
        await all_of(
            [
                asyncio.ensure_future(echo(self.name, self._groups[peer], peer, rank, nonce, size, later=None))
                for nonce in nonces
            ]
        )

    # -- messages -----------------------------------------------------------------------------------------------

    async def send_many(self, group: str, rank: int, times: int, size: int) -> None:
        to = f"{group}:{rank}"

        async def one(number: int, work: Any, operation: Operation) -> None:
            await follow(operation, work)

        tasks = []
        for _ in range(times):
            number = _SENT.next((self.name, to))
            operation = begin(self.name, "send", to, number)
            work = self.send((number, content(size)), group, rank)
            tasks.append(asyncio.ensure_future(one(number, work, operation)))
        await all_of(tasks)

    def send_blocking(self, group: str, rank: int, times: int, size: int) -> None:
        to = f"{group}:{rank}"
        for _ in range(times):
            number = _SENT.next((self.name, to))
            with noted(self.name, "send", to, number):
                # Whoever was to receive it may have died with the call in which it would have.
                self.send((number, content(size)), group, rank, async_op=True).wait(10.0)

    async def recv_many(self, group: str, rank: int, times: int, timeout: float | None) -> None:
        source = f"{group}:{rank}"
        tasks = []
        for _ in range(times):
            operation = begin(self.name, "recv", source, _WANTED.next((self.name, source)))
            work = self.recv(group, rank, timeout=timeout)
            tasks.append(asyncio.ensure_future(follow(operation, work, lambda message: message[0])))
        await all_of(tasks)

    async def broadcast_to(
        self, members: list[tuple[str, int]], source: tuple[str, int], nonce: int, size: int
    ) -> None:
        """One of several that get one value, or the one that has it."""
        groups = [(group, [rank for each, rank in members if each == group]) for group in dict.fromkeys(dict(members))]
        # A tensor: bytes are pickled into the frame, and no relay takes a large one.
        value = (nonce, torch.zeros(size, dtype=torch.uint8)) if (self._group_name, self._rank) == source else None
        with noted(self.name, "broadcast", nonce):
            async with asyncio.timeout(20.0):
                found = await self.broadcast(value, groups, src=source, async_op=True)
            # After a cancel or a death it may be that of another call, which this one was meant to meet.
            assert not found[1].any(), f"broadcast {nonce} brought something else"

    # -- once faults are over -----------------------------------------------------------------------------------

    async def reach(self, peer: str, rank: int) -> None:
        """By the handle that this process has had all along, if it has one."""
        if peer not in self._groups:
            self._groups[peer] = await WorkerGroup.from_group_name(Subject, peer)
        await self._groups[peer][rank].token()

    async def send_last(self, group: str, rank: int, nonce: int) -> None:
        await self.send(("last", nonce), group, rank)

    async def take_last(self, group: str, rank: int, nonce: int) -> None:
        """What has come before, and nobody has received, is left out."""
        while await self.recv(group, rank) != ("last", nonce):
            pass

    # -- channels -----------------------------------------------------------------------------------------------

    async def put(self, channel: Channel, line: int, numbers: Sequence[int], deadline: float | None) -> None:
        await put(self.name, channel, line, numbers, deadline)

    async def get(self, channel: Channel, line: int, times: int, deadline: float | None) -> None:
        await get(self.name, channel, line, times, deadline)

    # -- weights ------------------------------------------------------------------------------------------------

    async def train(self, versions: int, pause: float) -> None:
        """Publishes weights whose every number is their version."""
        model = _model(1)
        async with publish(model, to="b") as weights:
            for _ in range(versions):
                await asyncio.sleep(pause)
                for tensor in model.values():
                    tensor.fill_(float(weights.version + 1))
                begin(self.name, "publish", weights.version + 1)
                await weights.send()

    async def roll_out(self, reads: int, pause: float) -> None:
        """Reads followed weights now and then."""
        model = _model(0)
        async with asyncio.timeout(30.0), follow_weights(model, of="a", timeout=30.0) as weights:
            for _ in range(reads):
                async with weights.reading() as version:
                    numbers = sorted({float(number) for tensor in model.values() for number in tensor.unique()})
                    begin(self.name, "version", version, numbers)
                await asyncio.sleep(pause)


class Ring(Subject):
    """Passes the number of the attempt around the ring of its ranks when one has come back, each after a while."""

    async def on_restart(self, restart: Restart) -> None:
        before, after = self._neighbours()
        await asyncio.sleep(0.1 * self._rank)
        await self.send(restart.attempt, "ring", after)
        while await self.recv("ring", before) != restart.attempt:
            pass  # of an attempt that a death has ended

    def _neighbours(self) -> tuple[int, int]:
        return (self._rank - 1) % self._world_size, (self._rank + 1) % self._world_size


class BlockingRing(Ring):
    def on_restart(self, restart: Restart) -> None:  # type: ignore[override]
        before, after = self._neighbours()
        sleep(0.1 * self._rank)
        self.send(restart.attempt, "ring", after)
        while self.recv("ring", before) != restart.attempt:
            pass


def content(size: int) -> Any:
    """Return so many bytes; large ones as a tensor, whose memory is not pickled and which a link takes."""
    return bytes(size) if size < 100_000 else torch.zeros(size, dtype=torch.uint8)


def _model(version: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((512,), float(version)), "b": torch.full((16,), float(version))}


async def follow(operation: Operation, awaitable: Any, value: Any = lambda result: None) -> None:
    """Notes the end of something, and does not raise what it raises."""
    try:
        operation.value = value(await awaitable)
    except asyncio.CancelledError as error:
        operation.ended, operation.error = True, (type(error).__name__, "")
        raise
    except Exception as error:
        operation.ended, operation.error = True, (type(error).__name__, str(error)[:600])
    else:
        operation.ended = True


def is_echo(nonce: int, size: int) -> Callable[[Any], None]:
    """Looks at what a call has returned: it may be another one's."""

    def look(results: Any) -> None:
        assert results == [(nonce, bytes(size))], f"call {nonce} returned something else"

    return look


def is_one_echo(nonce: int, size: int) -> Callable[[Any], None]:
    look = is_echo(nonce, size)
    return lambda result: look([result])


async def echo(who: str, group: Any, name: str, rank: int, nonce: int, size: int, later: float | None) -> None:
    operation = begin(who, "call", nonce, f"{name}:{rank}")
    member = group[rank]
    call = member.echo(nonce, size) if later is None else member.echo_later(nonce, size, later)
    await follow(operation, call, is_echo(nonce, size))


def call_and_put(who: str, member: Any, name: str, line: Any, done: Sequence[tuple[int, int]]) -> None:
    """Calls and puts by turns, each waited for on this thread."""
    for nonce, number in done:
        with noted(who, "call", nonce, name):
            assert member.echo(nonce, 10).wait() == [(nonce, bytes(10))]
        with noted(who, "put", line.number, number):
            line.channel.put((line.number, number))  # it blocks where no loop runs


async def put(who: str, channel: Channel, line: int, numbers: Sequence[int], deadline: float | None) -> None:
    async def one(number: int) -> None:
        operation = begin(who, "put", line, number)
        await follow(operation, channel.put((line, number), timeout=deadline))

    await all_of([asyncio.ensure_future(one(number)) for number in numbers])


async def get(who: str, channel: Channel, line: int, times: int, deadline: float | None) -> None:
    await all_of([asyncio.ensure_future(get_one(who, channel, line, deadline)) for _ in range(times)])


async def get_one(who: str, channel: Channel, line: int, deadline: float | None) -> Operation:
    operation = begin(who, "get", line)
    work = channel.get(timeout=deadline)
    await follow(operation, work, lambda item: [*item, work.redelivered])
    return operation
