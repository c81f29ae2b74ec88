"""State of open calls: a caller's ``Tally`` of answers to one call, and a daemon's ``PendingCalls`` of one worker.

Both are plain state: their owners act on the return values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from enum import Enum, auto
from typing import Any

from rlinf_async._core.frames import HARMLESS, OK

Body = Any  # bytes, or the owner's replacement for them (a mapped segment)


class TallyStep(Enum):
    """The next action of a tally's owner after an answer."""

    WAIT = auto()
    FINISH = auto()  # every slot has answered
    # The first failure: cancel the unanswered slots, and wait a moment for their errors.
    CANCEL_OTHERS = auto()
    NOTHING = auto()  # the slot has answered before


# Module-level aliases for the hot path: looking up an enum member takes as long as a call.
WAIT, FINISH, CANCEL_OTHERS, NOTHING = TallyStep


class Tally:
    """The answers to one call, slot by slot."""

    __slots__ = ("answers", "failed", "missing", "whole")

    def __init__(self, size: int) -> None:
        self.answers: list[tuple[int, Body] | None] = [None] * size
        self.missing = size
        self.failed = False  # true once a slot has failed; a cancelled slot has not failed
        self.whole = True  # true while every answer so far is a result

    def answer(self, slot: int, status: int, body: Body) -> TallyStep:
        """Record the final answer of a slot; ignore a second answer of the same slot."""
        if self.answers[slot] is not None:
            return NOTHING
        self.answers[slot] = (status, body)
        first_failure = False
        if status != OK:
            self.whole = False
            if status not in HARMLESS and not self.failed:
                self.failed = first_failure = True
        self.missing -= 1  # decrement last: a thread that sees zero must also see ``failed``
        if not self.missing:
            return FINISH
        return CANCEL_OTHERS if first_failure else WAIT

    def unanswered(self) -> list[int]:
        return [slot for slot, answer in enumerate(self.answers) if answer is None]

    def failures(self) -> list[tuple[int, int, Body]]:
        """Return (slot, status, body) for each answer that is a failure, not a cancellation."""
        return [
            (slot, answer[0], answer[1])
            for slot, answer in enumerate(self.answers)
            if answer is not None and answer[0] not in HARMLESS
        ]


class PendingCalls:
    """The calls that one endpoint has accepted and not yet answered."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], tuple[int, str, float]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (source, call) for each open call, oldest first."""
        return iter(self._open)

    def add(self, source: int, call: int, slot: int, method: str, now: float) -> None:
        self._open[source, call] = (slot, method, now)

    def complete(self, source: int, call: int) -> bool:
        """Remove an answered call. Return False if it was not open."""
        return self._open.pop((source, call), None) is not None

    def is_pending(self, source: int, call: int) -> bool:
        return (source, call) in self._open

    def has_later(self, source: int, call: int) -> bool:
        return any(origin == source and number > call for origin, number in self._open)

    def slot(self, source: int, call: int) -> int | None:
        """Return the slot of an open call; None if the call is not open."""
        pending = self._open.get((source, call))
        return None if pending is None else pending[0]

    def of_source(self, source: int) -> list[int]:
        return [call for origin, call in self._open if origin == source]

    def fail_all(self) -> list[tuple[int, int, int]]:
        """Remove all open calls. Return (source, call, slot) for each, oldest first."""
        open_calls = [(source, call, slot) for (source, call), (slot, _, _) in self._open.items()]
        self._open.clear()
        return open_calls

    def ages(self, now: float, most: int | None = None) -> list[tuple[int, int, str, float]]:
        """Return (source, call, method, age in seconds) for the ``most`` oldest open calls (None: all), in order."""
        oldest = itertools.islice(self._open.items(), most)
        return [(source, call, method, now - since) for (source, call), (_, method, since) in oldest]

    def methods(self, now: float, most: int = 5) -> list[str]:
        """Return each open call with its age, oldest first: ``"step (3.2 s)"``."""
        lines = [f"{method} ({now - since:.1f} s)" for _, method, since in self._open.values()]
        return lines if len(lines) <= most else [*lines[:most], f"and {len(lines) - most} more"]
