"""A healthy run, asked every second by ``rlinf-ctl stuck``, never hangs; ``_inspection/state`` has the other ones."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests._support.inspected_runs import InspectedRun

pytestmark = pytest.mark.shared_cluster

HEALTHY = Path(__file__).parent / "healthy"
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
        print(f"{program.stem} {arguments[:1]}:", dict(Counter(each.stdout.partition(":")[0] for each in answers)))
        assert answers[-1].returncode == NO_RUN, answers[-1].stdout
        assert codes.count(0) >= at_least, codes


@pytest.mark.slow
def test_a_training_loop_is_no_hang() -> None:
    check(HEALTHY / "training_loop.py", "4", at_least=1)
