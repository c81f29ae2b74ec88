"""Random programs in simulated clusters: none breaks a promise, whatever the seed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from tests.faults.judgement import Violation
from tests.simulation.play import Report, play
from tests.simulation.program import Program, write
from tests.simulation.shrink import shrink

SEEDS = int(os.environ.get("RLINF_SIMULATED_SEEDS", "1000"))
CHUNK = 50


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Deaths by the hundred are said to nobody."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_program_breaks_a_promise(first: int) -> None:
    for seed in range(first, min(first + CHUNK, SEEDS)):
        report = play(seed)
        if report.violations:
            last = "\n".join(report.log[-40:])
            pytest.fail(f"{report}\nonce more: python -m tests.simulation {seed} --log 200\n{last}", pytrace=False)


def test_a_program_that_fails_is_made_as_short_as_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(seed: int, program: Program) -> Report:
        """One with a kill and a put behind it fails."""
        kinds = [step.kind for step in program.steps]
        fails = "kill" in kinds and "put" in kinds[kinds.index("kill") :]
        return Report(seed, program, [Violation("lost", "an item")] if fails else [])

    monkeypatch.setattr("tests.simulation.shrink.play", judge)
    report = next(report for report in (judge(seed, write(seed)) for seed in range(1000)) if report.violations)
    shorter = shrink(report)
    assert [step.kind for step in shorter.program.steps] == ["kill", "put"]
    assert len(report.program.steps) > 2


def test_a_program_is_its_seed() -> None:
    assert write(7) == write(7)
    assert str(write(7)) != str(write(8))
