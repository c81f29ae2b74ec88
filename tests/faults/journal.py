"""Operations of one process, as they begin and as they end, in a file that outlives it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
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


class Journal:
    """What one process writes; from any thread."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def close(self) -> None:
        """What ends from now on has not ended."""
        with self._lock:
            os.close(self._fd)
            self._fd = -1

    def begin(self, kind: str, *facts: Any) -> int:
        number = next(self._numbers)
        self._write(number, kind, facts)
        return number

    def end(self, number: int, value: Any = None, error: BaseException | None = None) -> None:
        failure = None if error is None else (type(error).__name__, str(error)[:300])
        self._write(number, "", [value, failure])

    @contextlib.contextmanager
    def noted(self, kind: str, *facts: Any) -> Iterator[list[Any]]:
        """An operation that ends with the block; what is appended to the list is its value."""
        number = self.begin(kind, *facts)
        value: list[Any] = []
        try:
            yield value
        except BaseException as error:
            self.end(number, error=error)
            raise
        self.end(number, value)

    def _write(self, *fields: Any) -> None:
        line = json.dumps(fields).encode() + b"\n"
        with self._lock:
            if self._fd >= 0:
                os.write(self._fd, line)


def read(path: Path, who: str) -> list[Operation]:
    """What a process has written, in order of the beginnings."""
    found: dict[int, Operation] = {}
    for line in path.read_text().splitlines():
        number, kind, facts = json.loads(line)
        if kind:
            found[number] = Operation(who, kind, facts)
        else:
            operation = found[number]
            operation.ended, operation.value = True, facts[0]
            operation.error = None if facts[1] is None else tuple(facts[1])
    return list(found.values())


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
