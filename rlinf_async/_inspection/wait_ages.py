"""Ages of waits that nothing records: lower bounds, from one look at this process to the next."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final

from rlinf_async._core import clock

_TOLD_FROM_S: Final = 2.0
"""Lower bounds below say less than that an age is not known: such a wait may be old, and would pass for a young one."""


@dataclass
class _Record:
    first: float
    token: Any


class WaitAges:
    """What earlier looks have found, by key: a name and what it waits for.

    A wait is the same as before if its token is: the future of a task, which lives no longer than the wait does, or
    a count of the times that a thread has gone to sleep.
    """

    def __init__(self) -> None:
        self._before: dict[Hashable, _Record] = {}
        self._now: dict[Hashable, _Record] = {}
        self._last = self._looked_at = 0.0

    def begin(self) -> None:
        """A look begins; what the one before has not found is forgotten."""
        self._before, self._now = self._now, {}
        self._last, self._looked_at = self._looked_at, clock.monotonic()

    def age(self, key: Hashable, token: Any) -> float | None:
        """Seconds that it has lasted at least, or, of one that has just begun, at most; None where it may be any."""
        with contextlib.suppress(TypeError):  # a number
            token = weakref.ref(token)
        now = self._looked_at
        before = self._before.get(key)
        if before is None:
            self._now[key] = _Record(now, token)
            return None
        if before.token == token:
            self._now[key] = before
            age = now - before.first
            return age if age >= _TOLD_FROM_S else None
        self._now[key] = _Record(now, token)
        return now - self._last
