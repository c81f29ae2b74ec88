"""Ages of waits that are not recorded: lower bounds, tracked from one examination of this process to the next."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final

from rlinf_async._core import clock

# Shorter lower bounds are reported as unknown; otherwise an old wait could look young.
_TOLD_FROM_S: Final = 2.0


@dataclass
class _Record:
    first: float
    token: Any


class WaitAges:
    """The findings of earlier examinations; each key is a name and the awaited object.

    A wait is unchanged if its token is the same. The token is a task's future, which lives no longer than the wait, or
    the number of times that a thread has gone to sleep so far.
    """

    def __init__(self) -> None:
        self._before: dict[Hashable, _Record] = {}
        self._now: dict[Hashable, _Record] = {}
        self._last = self._looked_at = 0.0

    def begin(self) -> None:
        """Start an examination, and forget waits that the previous examination did not find."""
        self._before, self._now = self._now, {}
        self._last, self._looked_at = self._looked_at, clock.monotonic()

    def age(self, key: Hashable, token: Any) -> float | None:
        """Return a lower bound on a wait's age in seconds, or an upper bound if the wait is new; None if unknown."""
        with contextlib.suppress(TypeError):  # the token may be a number
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
