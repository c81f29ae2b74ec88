"""``Crew``, the worker of families of programs, and what the driver and its ranks both do there."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from rlinf_async import Channel, DeadlineExceeded, Restart, WorkerGroup, concurrent
from rlinf_async._worker import context
from rlinf_async._worker.device_lock import DeviceLock
from rlinf_async.testing import sleep
from tests.simulation.experiencing import Experiencing
from tests.simulation.families import CREW
from tests.simulation.operations import Operation, all_of
from tests.simulation.subject import begin, follow, noted

PADDING = 500
"""Bytes of an item that fill channels whose bytes are bounded."""

_TAKES = itertools.count()
_POSTS = itertools.count()


class Crew(Experiencing):
    """Does what the families tell it, and notes it."""

    def __init__(self) -> None:
        super().__init__()
        self._meetings: dict[int, asyncio.Barrier] = {}

    async def insert(
        self, channel: Channel, line: int, key: Any, numbers: Sequence[int], weight: int, how: str, pads: bool
    ) -> None:
        await insert(self.name, channel, line, key, numbers, weight, how, pads)

    async def take(self, channel: Channel, line: int, key: Any, times: int, how: str, amount: int) -> None:
        await take(self.name, channel, line, key, times, how, amount)

    async def waver(self, channel: Channel, line: int, count: int, seed: int) -> None:
        await waver(self.name, channel, line, count, seed)

    # -- messages -----------------------------------------------------------------------------------------------

    async def talk(self, rank: int, nonce: int, plan: Sequence[tuple[int, float | None]]) -> None:
        """Sends messages of these sizes, of which some are withdrawn after so many seconds, and a last one."""
        to = f"{CREW}:{rank}"
        posts = []
        for size, patience in plan:
            number = next(_POSTS)
            operation = begin(self.name, "t_post", to, number, nonce)
            work = self.send((number, bytes(size)), CREW, rank)
            posts.append(asyncio.ensure_future(follow(operation, _wait(work, patience))))
        await all_of(posts)
        await self.send(("end", nonce), CREW, rank)

    async def listen(self, rank: int, nonce: int, patience: Sequence[float | None]) -> None:
        """Receives until the last message, and gives up on some receives."""
        source = f"{CREW}:{rank}"
        until = asyncio.get_running_loop().time() + 100  # the last message of a sender that has died never comes
        for seconds in itertools.cycle(patience):
            operation = begin(self.name, "t_fetch", source, nonce)
            work = self.recv(CREW, rank, timeout=max(0.0, until - asyncio.get_running_loop().time()))
            await follow(
                operation,
                _wait(work, seconds),
                lambda message: [message[0], message[1] if message[0] == "end" else len(message[1])],
            )
            if operation.value == ["end", nonce] or (operation.error and operation.error[0] != "TimeoutError"):
                break

    async def farewell(self, rank: int, nonce: int, size: int) -> bytes:
        """Answers, sends a last message, and ends: the message has left by then."""

        async def leave() -> None:
            await asyncio.sleep(0.001)  # the answer has left
            with noted(self.name, "t_last", nonce):
                await self.send((nonce, bytes(size)), CREW, rank)
            raise ValueError("a task of its own")

        self.background(leave())
        return bytes(size)

    async def hear_last(self, rank: int, nonce: int) -> bool:
        number, _ = await self.recv(CREW, rank, timeout=30.0)
        return bool(number == nonce)

    async def tell(self, rank: int, nonce: int, count: int) -> None:
        for work in [self.send(("told", nonce, number), CREW, rank) for number in range(count)]:
            await work

    async def listen_wavering(self, rank: int, nonce: int, count: int, seed: int) -> None:
        """Receives messages, and gives most receives up some turns of the loop later."""
        rng, found = random.Random(seed), list[Any]()
        operation = begin(self.name, "t_wavered", nonce)
        while len(found) < count:
            receiving = asyncio.ensure_future(_call(lambda: self.recv(CREW, rank, timeout=20.0)))
            if rng.random() < 0.7:
                for _ in range(rng.randrange(8)):
                    await asyncio.sleep(0)
                receiving.cancel()
            await asyncio.wait([receiving])
            if not receiving.cancelled() and receiving.result()[:2] == (
                "told",
                nonce,
            ):  # no talk whose listener has gone
                found.append(receiving.result()[2])
        operation.ended, operation.value = True, found

    async def give_all(self, source: int, nonce: int, size: int) -> None:
        """One of all ranks, which get one value."""
        value = (nonce, bytes(size)) if self._rank == source else None
        operation = begin(self.name, "t_cast", nonce)
        work = self.broadcast(value, [(CREW, list(range(self._world_size)))], src=(CREW, source), async_op=True)
        await follow(operation, _wait(work, 30.0), lambda found: [found[0], len(found[1]) - size])

    # -- locks --------------------------------------------------------------------------------------------------

    async def hold(self, nonce: int, devices: Sequence[int], seconds: float, timeout: float | None, times: int) -> None:
        """Has these devices for itself for a while, more than once over if ``times`` says so."""
        client = context.client
        assert client is not None
        lock = DeviceLock(client, self.name, devices)
        operation = begin(self.name, "l_hold", nonce, devices, self._token)
        held = 0
        try:
            for _ in range(times):
                await lock.acquire(timeout)
                held += 1
                begin(self.name, "l_has", nonce, devices, self._token)
            await asyncio.sleep(seconds)
            operation.value = "held"
        except DeadlineExceeded:
            operation.value = "late"
        finally:
            for _ in range(held):
                begin(self.name, "l_frees", nonce, devices, self._token)
                lock.release()
        if lock.is_held:
            begin(self.name, "l_stays", devices)
        operation.ended = True

    async def hold_twice(self, devices: Sequence[int]) -> None:
        """Want these devices twice at once, and let go of them only with both."""
        client = context.client
        assert client is not None
        lock = DeviceLock(client, self.name, devices)
        await asyncio.gather(_call(lock.acquire), _call(lock.acquire))
        lock.release()
        lock.release()

    async def want_briefly(self, devices: Sequence[int], times: int, seed: int) -> None:
        """Want these devices again and again, and change one's mind some turns of the loop later."""
        client = context.client
        assert client is not None
        lock, rng = DeviceLock(client, self.name, devices), random.Random(seed)
        for _ in range(times):
            wanting = asyncio.ensure_future(_call(lock.acquire))
            wanting.add_done_callback(lambda wanting: wanting.cancelled() or lock.release())
            try:
                for _ in range(rng.randrange(12)):
                    await asyncio.sleep(0)
            finally:  # also where this call is given up
                wanting.cancel()
            await asyncio.wait([wanting])
        if lock.is_held:
            begin(self.name, "l_stays", devices)

    def hold_blocking(self, nonce: int, devices: Sequence[int], seconds: float) -> None:
        client = context.client
        assert client is not None
        operation = begin(self.name, "l_hold", nonce, devices, self._token)
        with DeviceLock(client, self.name, devices):
            begin(self.name, "l_has", nonce, devices, self._token)
            sleep(seconds)
            begin(self.name, "l_frees", nonce, devices, self._token)
        operation.ended, operation.value = True, "held"

    # -- methods beside others ----------------------------------------------------------------------------------

    def block(self, nonce: int, seconds: float) -> None:
        begin(self.name, "run", nonce)
        sleep(seconds)

    @concurrent
    async def look(self, nonce: int) -> tuple[int, int]:
        begin(self.name, "m_run", nonce)
        return nonce, self._token

    @concurrent
    async def meet(self, nonce: int, count: int) -> int:
        """Waits for all of several calls of it."""
        begin(self.name, "m_run", nonce)
        met = self._meetings.setdefault(nonce, asyncio.Barrier(count))
        async with asyncio.timeout(20.0):  # one of them may have met another incarnation
            await met.wait()
        return nonce

    @concurrent
    async def stay(self, nonce: int) -> None:
        begin(self.name, "m_run", nonce)
        try:
            await asyncio.sleep(50)
        except asyncio.CancelledError:
            begin(self.name, "m_cancelled", nonce)
            raise

    @concurrent
    async def serve(self, nonce: int, seconds: float) -> int:
        """One of the calls that any rank takes."""
        with noted(self.name, "m_serve", nonce):
            await asyncio.sleep(seconds)
        return nonce

    @concurrent
    async def refuse(self, nonce: int) -> None:
        begin(self.name, "m_run", nonce)
        raise LookupError(f"call {nonce}")

    # -- streams ------------------------------------------------------------------------------------------------

    async def items(
        self, nonce: int, count: int, pad: int, pause: float, fails_at: int
    ) -> AsyncIterator[tuple[int, int, bytes]]:
        """As many items; it notes each before it goes, and its end."""
        begin(self.name, "s_begun", nonce)
        try:
            for number in range(count):
                if number == fails_at:
                    raise LookupError(f"{nonce} at {number}")
                begin(self.name, "s_yield", nonce, number)
                yield nonce, number, bytes(pad)
                if pause:
                    await asyncio.sleep(pause)
        finally:
            begin(self.name, "s_closed", nonce)

    async def read_peer(self, group: str, rank: int, facts: Sequence[Any]) -> None:
        """Reads a stream of another rank."""
        if group not in self._groups:
            async with asyncio.timeout(60.0):
                self._groups[group] = await WorkerGroup.from_group_name(type(self), group)
        await read(self.name, self._groups[group][rank], *facts)


class Hooked(Crew):
    """Has a hook of restarts; the group's argument says which."""

    def __init__(self, hook: str) -> None:
        super().__init__()
        self._hook = hook

    async def on_restart(self, restart: Restart) -> None:
        begin(self.name, "h_begun", restart.attempt, self._token, list(restart.ranks))
        if self._hook == "sleep":
            await asyncio.sleep(0.2 * self._rank)
        elif self._hook == "raise" and self._rank == restart.attempt % self._world_size:
            raise LookupError(f"the hook of attempt {restart.attempt}")
        elif self._hook == "ring":
            await self.send(("hook", restart.attempt), CREW, (self._rank + 1) % self._world_size)
            while await self.recv(CREW, (self._rank - 1) % self._world_size) != ("hook", restart.attempt):
                pass  # of an attempt that a death has ended
        elif self._hook == "all":
            groups = [(CREW, list(range(self._world_size)))]
            found = await self.broadcast(restart.attempt, groups, src=(CREW, 0), async_op=True)
            assert found <= restart.attempt, f"attempt {found} in attempt {restart.attempt}"
        begin(self.name, "h_ended", restart.attempt, self._token)


class BlockingHooked(Hooked):
    def on_restart(self, restart: Restart) -> None:  # type: ignore[override]
        begin(self.name, "h_begun", restart.attempt, self._token, list(restart.ranks))
        if self._hook == "sleep":
            sleep(0.2 * self._rank)
        elif self._hook == "raise" and self._rank == restart.attempt % self._world_size:
            raise LookupError(f"the hook of attempt {restart.attempt}")
        elif self._hook in ("ring", "all"):
            self.send(("hook", restart.attempt), CREW, (self._rank + 1) % self._world_size)
            while self.recv(CREW, (self._rank - 1) % self._world_size) != ("hook", restart.attempt):
                pass
        begin(self.name, "h_ended", restart.attempt, self._token)


def note_returns(group: Any, name: str) -> None:
    """Note which ranks of a group the driver is told to be back."""
    group.on_restart(lambda restart: begin("driver", "h_told", name, restart.attempt, list(restart.ranks)))


async def _wait(work: Any, patience: float | None) -> Any:
    async with asyncio.timeout(patience):
        return await work


async def _call(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Begin in the task that waits: one that is cancelled before its first step has asked for nothing."""
    return await function(*args, **options)


def excuse(operation: Operation, *names: str) -> None:
    """Make an error that was to be expected the operation's value."""
    if operation.error is not None and operation.error[0] in names:
        operation.value, operation.error = operation.error[0], None


async def insert(
    who: str, channel: Channel, line: int, key: Any, numbers: Sequence[int], weight: int, how: str, pads: bool
) -> None:
    """Put items one behind the other, each once the one before it is in."""
    where = {} if key == "" else {"key": key}
    for number in numbers:
        operation = begin(who, "insert", line, key, number, weight, pads)
        item = (line, key, number, weight, bytes(PADDING) if pads else b"")
        if how == "nowait":
            work = channel.put_nowait(item, weight, **where)
        else:
            work = channel.put(item, weight, **where, timeout=0.05 if how == "soon" else None)
        await follow(operation, work, lambda _: "in")
        if operation.value == "in":
            begin(who, "inserted", line, key, number)
        excuse(operation, "ClosedError", "QueueFull", "DeadlineExceeded")


def _ask(channel: Channel, key: Any, how: str, amount: int) -> Any:
    where = {} if key == "" else {"key": key}
    if how == "nowait":
        return channel.get_nowait(**where)
    if how == "many":
        return channel.get_many(amount, **where)
    if how == "hasty":  # what it has gathered by then goes back to its place
        return channel.get_many(amount + 3, **where, timeout=0.05)
    if how == "some":
        return channel.get_many(amount, **where, wait=False)
    if how == "batch":
        return channel.get_batch(amount, **where)
    if how == "drain":
        return channel.drain(**where)
    return channel.get(**where, timeout=0.05 if how == "soon" else None)


async def _lease(channel: Channel, key: Any, amount: int, end: int) -> list[Any]:
    """What a lease had that has ended well; some are confirmed one by one, fail, or last too long."""
    where = {} if key == "" else {"key": key}
    async with channel.lease(amount, **where, timeout=0.2 if end == 1 else None) as items:
        if end == 0:
            raise LookupError("not wanted")
        if end == 1:
            await asyncio.sleep(0.3)
        if end == 2:
            for _ in items:
                await items.done()
        return [[*item[:4], items.redelivered] for item in items]


async def _loop(who: str, line: int, channel: Channel, key: Any, amount: int) -> list[Any]:
    where = {} if key == "" else {"key": key}
    found: list[Any] = []
    async for item in channel.items(**where):
        begin(who, "begun", line, item[2])
        found.append([*item[:4], True])
        if len(found) == amount:
            break
    return found


async def take(
    who: str, channel: Channel, line: int, key: Any, times: int, how: str, amount: int, is_last: bool = False
) -> Operation:
    """Take items so many times, or until there are no more; the last operation."""
    for _ in range(times):
        number = next(_TAKES)
        operation = begin(who, "take", line, key, how, amount, number, is_last)
        if how == "lease":
            work = _lease(channel, key, amount, number % 6)
        elif how == "loop":
            work = _loop(who, line, channel, key, amount)
        else:
            work = _ask(channel, key, how, amount)

        def items(found: Any, work: Any = work, how: str = how) -> list[Any]:
            if how in ("lease", "loop"):
                return list(found)
            each = found if isinstance(found, list) else [found]
            return [[*item[:4], work.redelivered] for item in each]

        await follow(operation, work, items)
        begin(who, "taken", line, number)
        excuse(operation, "EndOfChannel", "ClosedError", "QueueEmpty", "DeadlineExceeded", "ValueError")
        excuse(operation, "LookupError", "LeaseLost")
        if operation.value in ("EndOfChannel", "ClosedError") or operation.error is not None:
            break
    return operation


async def waver(who: str, channel: Channel, line: int, count: int, seed: int) -> None:
    """Put so many items, and get each by gets of which most are given up: it keeps its place in front of later ones."""
    rng = random.Random(seed)
    for number in range(count):
        await channel.put((line, number))
    found = 0
    while found < count:
        getting = asyncio.ensure_future(_call(channel.get_many, rng.choice((1, 2)), wait=rng.choice((True, False))))
        await asyncio.wait([getting], timeout=rng.choice((0.0, 0.0002, 0.001, 0.02, 1.0)))
        for _ in range(rng.randrange(6)):
            await asyncio.sleep(0)
        getting.cancel()
        await asyncio.wait([getting])
        if not getting.cancelled():
            for item in getting.result():
                begin(who, "w_got", line, item)
                found += 1


async def read(
    who: str,
    members: Any,
    nonce: int,
    count: int,
    pad: int,
    pause: float,
    fails_at: int,
    how: str,
    most: int,
    eat: float,
) -> None:
    """Read a stream, whole or in part.

    Args:
        how: ``whole``; after ``most`` items ``break``, ``close`` or ``aclose``; or ``unread``.
        eat: seconds that each item takes.
    """
    with _reading(who, nonce, how, most) as operation:
        stream = members.items(nonce, count, pad, pause, fails_at)
        operation.value = 0
        if how == "unread":
            await asyncio.sleep(eat)
            del stream
            return
        async for rank, (came_for, number, padding) in stream:
            begin(who, "s_item", nonce, rank, number)
            assert (came_for, len(padding)) == (nonce, pad), f"an item of {came_for} in stream {nonce}"
            operation.value += 1
            if how != "whole" and operation.value == most:
                break
            if eat:
                await asyncio.sleep(eat)
        if how == "close":
            stream.close()
        elif how == "aclose":
            await stream.aclose()
            begin(who, "s_ended", nonce)


def read_blocking(who: str, members: Any, nonce: int, *facts: Any) -> None:
    """Read a stream on a thread, from the first item to the last."""
    with _reading(who, nonce, "whole", 0) as operation:
        operation.value = 0
        for rank, (came_for, number, _) in members.items(nonce, *facts):
            begin(who, "s_item", nonce, rank, number)
            assert came_for == nonce, f"an item of {came_for} in stream {nonce}"
            operation.value += 1


@contextlib.contextmanager
def _reading(who: str, nonce: int, how: str, most: int) -> Iterator[Operation]:
    """A stream that is read; the error of its method is the operation's value."""
    operation = begin(who, "s_read", nonce, how, most)
    with contextlib.suppress(LookupError):
        try:
            yield operation
        except BaseException as error:
            if type(error).__name__ != "SimulatedDeath":
                operation.ended, operation.error = True, (type(error).__name__, str(error)[:300])
            raise
        finally:
            excuse(operation, "LookupError")
    operation.ended = True
