"""Random programs in simulated clusters: none breaks a promise, whatever the seed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlinf_async.testing import SimCluster, sleep
from tests.simulation.invariants import find_left
from tests.simulation.judgement import Violation
from tests.simulation.play import Play, Report, play
from tests.simulation.program import Program, write
from tests.simulation.shrink import shrink

CHECKOUT = Path(__file__).resolve().parents[2]
SEEDS = int(os.environ.get("RLINF_SIMULATED_SEEDS", "800"))
PROCESSES = 2
SHARE = 400
"""Seeds of one process: what a killed process has had is not given back, as little as by the kernel."""

QUICK = 50
"""Seeds that `make test` plays."""


def play_some(seeds: range) -> str:
    """Return the output of a process that plays these seeds, or nothing where none fails."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.simulation", str(seeds.start), str(seeds.stop)]
    command += ["--log", "40"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    return "" if ", 0 failed, " in done.stdout else done.stdout + done.stderr


@pytest.mark.parametrize("seeds", [range(QUICK), pytest.param(range(QUICK, SEEDS), marks=pytest.mark.slow)], ids=str)
def test_no_program_breaks_a_promise(seeds: range) -> None:
    shares = [seeds[first : first + SHARE] for first in range(0, len(seeds), SHARE)]
    with ThreadPoolExecutor(PROCESSES) as processes:
        failed = [told for told in processes.map(play_some, shares) if told]
    if failed:
        pytest.fail("\n".join(failed) + "\nonce more: python -m tests.simulation SEED --log 200", pytrace=False)


def test_a_step_with_an_error_of_its_own_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def burst(*_: object) -> None:
        raise TypeError("an argument is missing")

    monkeypatch.setattr(Play, "burst", burst)
    report = play(923)
    assert "burst" in str(report.program)
    assert {each.kind for each in report.violations} == {"step"}


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


def test_what_a_driver_leaves_behind_is_found() -> None:
    sim = SimCluster()

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        assert find_left(loop, sim) == []
        timer = loop.call_later(5, print)
        task = loop.create_task(asyncio.sleep(7), name="forgotten")
        thread = threading.Thread(target=sleep, args=(9,), name="forgotten")
        thread.start()
        found = [str(violation) for violation in find_left(loop, sim)]
        timer.cancel()
        await task
        await loop.run_in_executor(None, thread.join)
        return found

    found = sim.run(main)
    assert [text.split()[1] for text in found] == ["task", "thread", "timer"], found
