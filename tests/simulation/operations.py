"""Operations of a program of the simulation, and helpers that make them."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass
class Operation:
    """One operation.

    Attributes:
        who: the process, by name.
        kind: ``call``, ``run``, ``send``, ``recv``, ``put``, ``get``, ``close``.
        facts: of the kind: whom it concerns, and its number.
        ended: whether it came to an end before the journal did.
        value: of a success.
        error: the exception's type and text.
    """

    who: str
    kind: str
    facts: list[Any]
    ended: bool = False
    value: Any = None
    error: tuple[str, str] | None = None

    def __str__(self) -> str:
        outcome = "still open" if not self.ended else ": ".join(self.error) if self.error else f"-> {self.value}"
        return f"{self.who} {self.kind} {self.facts} {outcome}"


async def all_of(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Waits for all of them, however they end; cancelled, it cancels them first."""
    waiting = set(tasks)
    if not waiting:
        return
    try:
        await asyncio.wait(waiting)
    except asyncio.CancelledError:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        raise


class Counters:
    """Numbers from 0, one line of them for each key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[Any, itertools.count[int]] = {}

    def next(self, key: Any) -> int:
        with self._lock:
            return next(self._lines.setdefault(key, itertools.count()))
