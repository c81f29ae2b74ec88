"""``Crew``, the worker of families of programs, and what the driver and its ranks both do there."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from rlinf_async import Channel
from tests.faults.journal import Operation
from tests.simulation.subject import Subject, begin, follow

PADDING = 500
"""Bytes of an item that fill channels whose bytes are bounded."""

_TAKES = itertools.count()


class Crew(Subject):
    """Does what the families tell it, and notes it."""

    async def insert(
        self, channel: Channel, line: int, key: Any, numbers: Sequence[int], weight: int, how: str, pads: bool
    ) -> None:
        await insert(self.name, channel, line, key, numbers, weight, how, pads)

    async def take(self, channel: Channel, line: int, key: Any, times: int, how: str, amount: int) -> None:
        await take(self.name, channel, line, key, times, how, amount)


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
    if how == "some":
        return channel.get_many(amount, **where, wait=False)
    if how == "batch":
        return channel.get_batch(amount, **where)
    if how == "drain":
        return channel.drain(**where)
    return channel.get(**where, timeout=0.05 if how == "soon" else None)


async def take(
    who: str, channel: Channel, line: int, key: Any, times: int, how: str, amount: int, is_last: bool = False
) -> Operation:
    """Take items so many times, or until there are no more; the last operation."""
    for _ in range(times):
        number = next(_TAKES)
        operation = begin(who, "take", line, key, how, amount, number, is_last)
        work = _ask(channel, key, how, amount)

        def items(found: Any, work: Any = work) -> list[Any]:
            each = found if isinstance(found, list) else [found]
            return [[*item[:4], work.redelivered] for item in each]

        await follow(operation, work, items)
        begin(who, "taken", line, number)
        excuse(operation, "EndOfChannel", "ClosedError", "QueueEmpty", "DeadlineExceeded", "ValueError")
        if operation.value in ("EndOfChannel", "ClosedError") or operation.error is not None:
            break
    return operation
