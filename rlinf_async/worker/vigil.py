"""Whoever waits for long without a deadline, and is told so: one timer a loop, however many wait."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from typing import Final

SLOW: Final = 60.0
"""Seconds after which somebody who waits without a deadline is told once that this still goes on."""


class Vigil:
    """Those who wait on one loop; all calls are made there.

    Example:
        number = vigil.begin(tell)       # ``tell`` is called, once, if this lasts for ``SLOW`` seconds
        vigil.end(number)
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[float, Callable[[], None]]] = {}
        """In the order in which they began."""
        self._is_set = False

    def __repr__(self) -> str:
        return f"<Vigil [{len(self._waiting)} waiting]>"

    def begin(self, tell: Callable[[], None]) -> int:
        number = next(self._numbers)
        now = self.loop.time()
        self._waiting[number] = now, tell
        if not self._is_set:
            self._set(now + SLOW)
        return number

    def end(self, number: int) -> None:
        self._waiting.pop(number, None)

    def _set(self, when: float) -> None:
        self._is_set = True
        self.loop.call_at(when, self._look)

    def _look(self) -> None:
        self._is_set = False
        now = self.loop.time()
        for number, (since, tell) in list(self._waiting.items()):
            if since + SLOW > now:
                self._set(since + SLOW)
                return
            del self._waiting[number]
            tell()


class _Here(threading.local):
    vigil: Vigil | None = None


_here = _Here()


def vigil_of(loop: asyncio.AbstractEventLoop) -> Vigil:
    """That of the loop that runs on this thread."""
    vigil = _here.vigil
    if vigil is None or vigil.loop is not loop:
        vigil = _here.vigil = Vigil(loop)
    return vigil
