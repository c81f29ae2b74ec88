"""Random programs in simulated clusters: none breaks a promise, whatever the seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.judgement import Violation
from tests.simulation.play import Report
from tests.simulation.program import Program, write
from tests.simulation.shrink import shrink

CHECKOUT = Path(__file__).resolve().parents[2]
SEEDS = int(os.environ.get("RLINF_SIMULATED_SEEDS", "300"))
PROCESSES = 2


def test_no_program_breaks_a_promise() -> None:
    """In processes of their own: what a killed process has had is not given back, as little as by the kernel."""
    share = -(-SEEDS // PROCESSES)
    command = [sys.executable, "-W", "ignore", "-m", "tests.simulation"]
    running = [
        subprocess.Popen(
            [*command, str(first), str(min(first + share, SEEDS)), "--log", "40"],
            cwd=CHECKOUT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for first in range(0, SEEDS, share)
    ]
    told = [process.communicate() for process in running]
    failed = [stdout + stderr for stdout, stderr in told if ", 0 failed, " not in stdout]
    if failed:
        pytest.fail("\n".join(failed) + "\nonce more: python -m tests.simulation SEED --log 200", pytrace=False)


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
