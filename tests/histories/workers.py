"""Producers and consumers that write down what happens to them, one line each, before anybody else can know."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Iterator
from typing import Any, Final

from rlinf_async import Channel, EndOfChannel, LeaseLost, Worker
from rlinf_async._channels.remote_queue import RemoteQueue
from rlinf_async._channels.request import Get
from rlinf_async._core import codec
from tests.histories.history import GIVEN_BACK, KEPT, UNSURE

LARGE_EVERY: Final = 400
"""One item in so many travels as shared memory."""

IMPATIENT: Final = 0.02
"""Part of the puts and gets that are given up after a moment."""


class Journal:
    """Lines that outlive their writer, however it ends."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, *fields: int) -> None:
        os.write(self._fd, (" ".join(map(str, fields)) + "\n").encode())


def patience(chance: random.Random) -> contextlib.AbstractAsyncContextManager[Any]:
    """A deadline for some, of a length that meets every stage of an operation."""
    if chance.random() < IMPATIENT:
        return asyncio.timeout(chance.choice((0.0, 1e-4, 3e-4, 1e-3)))
    return contextlib.nullcontext()


class Producer(Worker):
    """Puts items (who, number) and writes down the numbers that were accepted."""

    def __init__(self) -> None:
        super().__init__()

    def pid(self) -> int:
        return os.getpid()

    async def produce(self, channel: Channel, who: int, count: int, keys: int, in_flight: int, path: str) -> None:
        journal = Journal(path)
        chance = random.Random(who)
        numbers = iter(range(count))

        async def one() -> None:
            for number in numbers:
                padding = bytes(40_000) if number % LARGE_EVERY == 0 else b""
                with contextlib.suppress(TimeoutError):
                    async with patience(chance):
                        await channel.put((who, number, padding), key=number % keys)
                        journal.write(number)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(in_flight):
                tasks.create_task(one())


class Consumer(Worker):
    """Gets items and writes each down: before the channel hears that it was taken, and when it is there for good."""

    def __init__(self) -> None:
        super().__init__()

    def pid(self) -> int:
        return os.getpid()

    async def consume(self, channel: Channel, who: int, keys: int, in_flight: int, path: str) -> None:
        """By so many tasks for each key."""
        journal = Journal(path)
        chance = random.Random(who)
        with noted(journal):
            async with asyncio.TaskGroup() as tasks:
                for task in range(in_flight * keys):
                    tasks.create_task(self._get_all(channel, task % keys, chance, journal))

    async def loop_over(self, channel: Channel, who: int, key: int, path: str) -> None:
        """By loops over one key, each of which ends after a while."""
        journal = Journal(path)
        chance = random.Random(who)
        begun = 0
        with noted(journal):
            while True:
                left = chance.randrange(1, 60)
                async for producer, number, _ in channel.items(key, window=chance.choice((None, 3))):
                    begun += 1
                    journal.write(producer, number, 0, begun, KEPT)
                    left -= 1
                    if not left:
                        break
                else:
                    return

    async def lease(self, channel: Channel, who: int, key: int, path: str) -> None:
        """In leases of one key, some of which end by an error, or too late."""
        journal = Journal(path)
        chance = random.Random(who)
        while True:
            how = chance.choice((*["well"] * 9, "error", "in parts", "late"))
            open_: list[Any] = []
            try:
                async with channel.lease(chance.randrange(1, 9), key, timeout=0.02 if how == "late" else None) as items:
                    open_ += items
                    if how == "error":
                        raise LookupError
                    if how == "late":
                        await asyncio.sleep(0.03)
                    if how == "in parts":
                        write(journal, open_[:1], UNSURE)
                        await items.done()
                        write(journal, open_[:1], KEPT)
                        del open_[:1]
                    write(journal, open_, UNSURE)
                write(journal, open_, KEPT)
            except LookupError:
                continue
            except LeaseLost:
                write(journal, open_, GIVEN_BACK)
            except EndOfChannel:
                return

    async def observe(self, channel: Channel, keys: int) -> None:
        """Asks what there is, now and then, for ever."""
        chance = random.Random(keys)
        while True:
            key = chance.randrange(keys)
            for item in await channel.peek_all(key=key):
                assert item.item[1] % keys == key
            await channel.qsize(key=key)
            await asyncio.sleep(chance.uniform(0.0, 0.2))

    async def _get_all(self, channel: Channel, key: int, chance: random.Random, journal: Journal) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with patience(chance):
                    try:
                        write(journal, [await channel.get(key=key)], KEPT)
                    except EndOfChannel:
                        return


def write(journal: Journal, items: list[Any], end: int) -> None:
    for producer, number, _ in items:
        journal.write(producer, number, 1, 0, end)


@contextlib.contextmanager
def noted(journal: Journal) -> Iterator[None]:
    """Items are written down before the channel hears that they are taken; of a loop only those without descriptors."""
    original, take_next = RemoteQueue.taken, Get.take_next

    def taken(queue: RemoteQueue, get: Any) -> None:
        if get.reader is None:
            who, number, _ = get._value
            journal.write(who, number, int(get.redelivered), get.number, UNSURE)
        original(queue, get)

    def take(get: Get[Any]) -> list[Any]:
        if get._bodies and not get._bodies[-1][1]:
            write(journal, [codec.decode(get._bodies[-1][0])], UNSURE)
        return take_next(get)

    RemoteQueue.taken, Get.take_next = taken, take  # type: ignore[method-assign]
    try:
        yield
    finally:
        RemoteQueue.taken, Get.take_next = original, take_next  # type: ignore[method-assign]
