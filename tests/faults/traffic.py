"""Channel operations of the driver and of workers, each in a journal."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

from rlinf_async import Channel
from tests.faults.journal import Journal, all_of


def item(incarnation: int, number: int, size: int) -> tuple[int, int, bytes]:
    return incarnation, number, bytes(size)


async def put(
    journal: Journal, channel: Channel, incarnation: int, numbers: Sequence[int], size: int, deadline: float | None
) -> None:
    """Several puts at once; those that fail say so in the journal."""
    tasks = []
    for number in numbers:
        entry = journal.begin("put", incarnation, number)
        tasks.append(started(journal, entry, channel.put(item(incarnation, number, size), timeout=deadline)))
    await all_of(tasks)


async def get(journal: Journal, channel: Channel, incarnation: int, times: int, deadline: float | None) -> None:
    """Several gets at once, likewise."""
    tasks = []
    for _ in range(times):
        entry = journal.begin("get", incarnation)
        work = channel.get(timeout=deadline)
        tasks.append(started(journal, entry, work, functools.partial(_taken, work)))
    await all_of(tasks)


def put_blocking(
    journal: Journal, channel: Channel, incarnation: int, numbers: Sequence[int], size: int, deadline: float | None
) -> None:
    for number in numbers:
        entry = journal.begin("put", incarnation, number)
        try:
            channel.put(item(incarnation, number, size), timeout=deadline)
        except Exception as error:
            journal.end(entry, error=error)
        else:
            journal.end(entry)


def get_blocking(journal: Journal, channel: Channel, incarnation: int, times: int, deadline: float | None) -> None:
    for _ in range(times):
        entry = journal.begin("get", incarnation)
        try:
            work = channel.get(async_op=True, timeout=deadline)
            value = work.wait()
        except Exception as error:
            journal.end(entry, error=error)
        else:
            journal.end(entry, _taken(work, value))


def _taken(work: Any, value: tuple[int, int, bytes]) -> list[Any]:
    incarnation, number, _ = value
    return [incarnation, number, bool(getattr(work, "redelivered", False))]


def started(journal: Journal, entry: int, work: Any, shown: Any = None) -> asyncio.Task[Any]:
    """A task that waits for the work and writes its end; ``shown`` makes of its result what is written."""
    task: asyncio.Task[Any] = asyncio.create_task(work)

    def write(task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            journal.end(entry, error=asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            journal.end(entry, error=error)
        else:
            journal.end(entry, None if shown is None else shown(task.result()))

    task.add_done_callback(write)
    return task
