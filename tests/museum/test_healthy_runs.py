"""Healthy runs that wait long and in every way: ``rlinf-ctl stuck``, asked every second, never says that one hangs."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests._support.inspected_runs import InspectedRun

pytestmark = pytest.mark.shared_cluster

HEALTHY = Path(__file__).parent / "healthy"
EXAMPLES = Path(__file__).parents[2] / "examples"
INTERVAL_S = 1.0
TIMEOUT_S = 400

NO_RUN = 3
"""Exit code of ``rlinf-ctl`` where there is no run: none yet, or none any more."""


def answers_of(run: InspectedRun) -> list[subprocess.CompletedProcess[str]]:
    """What ``stuck`` says every second until the run has ended, and once more."""
    answers: list[subprocess.CompletedProcess[str]] = []
    deadline = time.monotonic() + TIMEOUT_S
    following = time.monotonic()
    while run.process.poll() is None:
        assert time.monotonic() < deadline, f"has not ended within {TIMEOUT_S} s:\n{run.output}"
        answers.append(run.ask("stuck"))
        following = max(following + INTERVAL_S, time.monotonic())
        while run.process.poll() is None and time.monotonic() < following:
            time.sleep(0.05)
    return [*answers, run.ask("stuck")]


def check(program: Path, *arguments: str, at_least: int, flags: tuple[str, ...] = ()) -> None:
    """Runs the program, and holds all answers to what it is: a run that goes on, and that comes to its end.

    Args:
        at_least: answers that there have to be while it runs.
        flags: of ``rlinf-launch``.
    """
    with InspectedRun(program, *arguments, flags=flags) as run:
        answers = answers_of(run)
        assert run.process.returncode == 0, run.output
        assert run.end() == []
        wrong = [answer for answer in answers if answer.returncode not in (0, NO_RUN)]
        assert not wrong, f"{wrong[0].stdout}{wrong[0].stderr}\nafter:\n{run.output}"
        codes = [answer.returncode for answer in answers]
        assert answers[-1].returncode == NO_RUN, answers[-1].stdout
        assert codes.count(0) >= at_least, codes


def test_a_training_loop_is_no_hang() -> None:
    check(HEALTHY / "training_loop.py", "4", at_least=1)


@pytest.mark.museum
@pytest.mark.parametrize(
    ("program", "arguments", "at_least"),
    [
        ("training_loop", ["30"], 5),
        ("held_gil", ["20"], 3),
        ("slow_driver", [], 4),
        ("idle_service", [], 4),
        ("late_names", [], 3),
        ("deadlines", [], 6),
        ("one_at_a_time", ["5"], 5),
        ("late_helpers", [], 10),
        ("outside_waits", [], 15),
    ],
)
def test_a_program_that_waits_for_long_is_no_hang(program: str, arguments: list[str], at_least: int) -> None:
    check(HEALTHY / f"{program}.py", *arguments, at_least=at_least)


@pytest.mark.museum
def test_slow_streams_and_devices_that_are_shared_are_no_hang() -> None:
    check(HEALTHY / "slow_streams.py", at_least=5, flags=("--fake-gpus", "2"))


@pytest.mark.museum
@pytest.mark.parametrize("round_", range(3))
def test_the_smallest_example_is_no_hang(round_: int) -> None:
    check(EXAMPLES / "hello.py", at_least=0)
