"""Shorter programs that break the same promise: steps are left out as long as it is still broken."""

from __future__ import annotations

import dataclasses

from tests.simulation.play import Report, play


def shrink(report: Report) -> Report:
    """The shortest program that was found for the same seed; its report."""
    kinds = {violation.kind for violation in report.violations}
    best = report
    size = max(1, len(best.program.steps) // 2)
    while True:
        steps = best.program.steps
        for first in range(0, len(steps), size):
            shorter = dataclasses.replace(best.program, steps=steps[:first] + steps[first + size :])
            found = play(report.seed, shorter)
            if kinds & {violation.kind for violation in found.violations}:
                best = found
                break
        else:
            if size == 1:
                return best
            size //= 2
