"""Open calls: ``Tally``, answers by rank, kept by the caller; ``PendingCalls``, what a worker owes, by its daemon.

Plain state: both only say what to do next, and their owners do it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from enum import Enum, auto
from typing import Any

from rlinf_async._core.frames import HARMLESS, OK

Body = Any
"""Bytes, or whatever the owner puts in their place (a mapped segment)."""


class TallyStep(Enum):
    """What the owner of a tally does after an answer."""

    WAIT = auto()
    FINISH = auto()
    """Every slot has answered."""
    CANCEL_OTHERS = auto()
    """The first failure: cancel the slots that have not answered, and give them a moment to say more."""
    NOTHING = auto()
    """An answer that nobody waits for any more."""


WAIT, FINISH, CANCEL_OTHERS, NOTHING = TallyStep
"""By themselves, for every answer meets them: a member of an enum takes as long to look up as a call."""


class Tally:
    """The answers to one call, slot by slot.

    Example:
        >>> tally = Tally(2)
        >>> tally.answer(0, Status.OK, b"a")
        <TallyStep.WAIT: 1>
        >>> tally.answer(1, Status.OK, b"b")
        <TallyStep.FINISH: 2>
    """

    __slots__ = ("answers", "failed", "missing", "whole")

    def __init__(self, size: int) -> None:
        self.answers: list[tuple[int, Body] | None] = [None] * size
        self.missing = size
        self.failed = False
        """Some slot has failed; being cancelled is no failure."""
        self.whole = True
        """Every answer so far is a result."""

    def answer(self, slot: int, status: int, body: Body) -> TallyStep:
        """Takes the final answer of a slot; a second answer of the same slot is dropped."""
        if self.answers[slot] is not None:
            return NOTHING
        self.answers[slot] = (status, body)
        first_failure = False
        if status != OK:
            self.whole = False
            if status not in HARMLESS and not self.failed:
                self.failed = first_failure = True
        self.missing -= 1  # last: another thread that sees the end sees how it has ended
        if not self.missing:
            return FINISH
        return CANCEL_OTHERS if first_failure else WAIT

    def unanswered(self) -> list[int]:
        return [slot for slot, answer in enumerate(self.answers) if answer is None]

    def failures(self) -> list[tuple[int, int, Body]]:
        """(slot, status, body) of every answer that is an error in its own right."""
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
        """(source, call) of every open call, oldest first."""
        return iter(self._open)

    def add(self, source: int, call: int, slot: int, method: str, now: float) -> None:
        self._open[source, call] = (slot, method, now)

    def complete(self, source: int, call: int) -> bool:
        """False if nothing was owed: an answer to nobody."""
        return self._open.pop((source, call), None) is not None

    def is_pending(self, source: int, call: int) -> bool:
        return (source, call) in self._open

    def has_later(self, source: int, call: int) -> bool:
        """Whether a call is open that this source made after ``call``."""
        return any(origin == source and number > call for origin, number in self._open)

    def slot(self, source: int, call: int) -> int | None:
        """The slot that an answer to this call is for; None if no answer is owed."""
        pending = self._open.get((source, call))
        return None if pending is None else pending[0]

    def of_source(self, source: int) -> list[int]:
        """The open calls that came from this endpoint."""
        return [call for origin, call in self._open if origin == source]

    def fail_all(self) -> list[tuple[int, int, int]]:
        """Forgets every pending call; (source, call, slot) of each, oldest first."""
        open_calls = [(source, call, slot) for (source, call), (slot, _, _) in self._open.items()]
        self._open.clear()
        return open_calls

    def ages(self, now: float, most: int | None = None) -> list[tuple[int, int, str, float]]:
        """(source, call, method, seconds) of the open calls, oldest first; of so many, or of all."""
        oldest = itertools.islice(self._open.items(), most)
        return [(source, call, method, now - since) for (source, call), (_, method, since) in oldest]

    def methods(self, now: float, most: int = 5) -> list[str]:
        """What was asked and how long ago, oldest first: ``"step (3.2 s)"``."""
        lines = [f"{method} ({now - since:.1f} s)" for _, method, since in self._open.values()]
        return lines if len(lines) <= most else [*lines[:most], f"and {len(lines) - most} more"]
