"""Count of what random programs find: ``python -m tests.faults.survey SECONDS [SEED] [STEP,STEP...]``.

It does not stop at the first failure, and makes nothing shorter.  Steps that are named are left out.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter

import hypothesis
from hypothesis import HealthCheck, Phase, given

from tests.faults.programs import programs
from tests.faults.stage import Stage, surroundings
from tests.faults.steps import Program


def main() -> None:
    began = time.monotonic()
    until = began + float(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 10_000
    without = set(sys.argv[3].split(",")) if len(sys.argv) > 3 else set()
    counts: Counter[str] = Counter()
    first: dict[str, tuple[float, Program]] = {}
    played, failed = 0, 0
    with surroundings(), Stage() as stage:

        def play(program: Program) -> None:
            nonlocal played, failed
            if time.monotonic() > until:
                return
            program = tuple(step for step in program if type(step).__name__ not in without)
            played += 1
            before = time.monotonic()
            report = stage.play(program)
            if report.violations:
                failed += 1
                print(f"---- program {played}, {time.monotonic() - before:.1f} s, seed {seed}\n{report}", flush=True)
            for signature in {_signature(str(violation)) for violation in report.violations}:
                counts[signature] += 1
                first.setdefault(signature, (time.monotonic() - began, program))

        while time.monotonic() < until:
            seed += 1
            _generate(play, seed)
    print(f"==== {played} programs, {played * 60 / (time.monotonic() - began):.0f} a minute, {failed} failed")
    for signature, count in counts.most_common():
        print(f"{count:4} times, first after {first[signature][0]:.0f} s: {signature}")


def _signature(text: str) -> str:
    return re.sub(r"\d+", "N", text)[:110]


def _generate(play: object, seed: int) -> None:
    hypothesis.seed(seed)(
        hypothesis.settings(
            max_examples=25,
            database=None,
            deadline=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )(given(programs())(play))  # type: ignore[arg-type]
    )()


if __name__ == "__main__":
    main()
