"""A search for a program that breaks a promise, and for the shortest one that does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import hypothesis
from hypothesis import HealthCheck, Phase, given

from tests.faults.programs import programs
from tests.faults.stage import Report, Stage
from tests.faults.steps import Program

BATCH = 20
"""Programs for which hypothesis is asked at a time."""

SHRINK_S = 90.0
"""Seconds for a failing program to be made shorter."""

TRIES = 2
"""Times that a shorter program is played before it counts as one that does not fail: two runs of it differ."""


class BrokenError(AssertionError):
    """A program that breaks a promise."""


@dataclass
class Search:
    """Plays programs for some seconds.

    Attributes:
        played: how many.
        wanted: which reports count as failures.
        shrink_s: seconds for a failing program to be made shorter.
        found: the shortest failing one so far.
        seconds: until the first of them had failed.
    """

    stage: Stage
    until: float
    wanted: Callable[[Report], bool] = lambda report: bool(report.violations)
    shrink_s: float = SHRINK_S
    played: int = 0
    found: Report | None = None
    seconds: float | None = None
    _began: float = field(default_factory=time.monotonic)
    _known: dict[Program, bool] = field(default_factory=dict)
    """Whether a program has failed: hypothesis hears the same of one program each time."""

    def go(self, seed: int) -> Report | None:
        """The shortest failing program that was found; None when time is over."""
        while self.found is None and time.monotonic() < self.until:
            seed += 1
            try:
                self._batch(seed)
            except BrokenError:
                pass
        return self.found

    def _batch(self, seed: int) -> None:
        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=BATCH,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            verbosity=hypothesis.Verbosity.quiet,
        )
        @given(programs())
        def one(program: Program) -> None:
            if self._fails(program):
                raise BrokenError

        one()

    def _fails(self, program: Program) -> bool:
        if program not in self._known:
            if time.monotonic() > self.until:
                return False
            self._known[program] = self._try(program)
        return self._known[program]

    def _try(self, program: Program) -> bool:
        for _ in range(1 if self.found is None else TRIES):
            report = self.stage.play(program)
            self.played += 1
            if report.violations and self.wanted(report):
                if self.found is None:
                    self.seconds = time.monotonic() - self._began
                    self.until = time.monotonic() + self.shrink_s
                if self.found is None or len(program) <= len(self.found.program):
                    self.found = report
                return True
        return False
