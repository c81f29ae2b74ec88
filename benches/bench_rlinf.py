"""RLinf's own program on this framework and on Ray: the first step, a step, and the time from the last step to exit.

    make rlinf-env
    python -m benches.bench_rlinf [--peer ray] [--rounds 3]

RLinf's runner and workers train PPO with an MLP on Pendulum (tests/rlinf_programs), alternating, each in a new process.
Both sides declare one GPU and compute on the CPU by the same substitution (contestants/cpu_in_place). The peer's
environment is .venv-rlinf with the packages of --peers-dir/ray behind it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from . import measure
from .contestant import HERE
from .measure import OURS, Case, Target
from .options import Options, parse

BENCH: Final = "rlinf"
CHECKOUT: Final = HERE.parent
PYTHON: Final = CHECKOUT / ".venv-rlinf" / "bin" / "python"
PROGRAM: Final = CHECKOUT / "tests" / "rlinf_programs" / "train_pendulum.py"
RAY: Final = "ray"
STEPS: Final = 3
TIMEOUT_S: Final = 400

MARKS: Final = {"cluster": r"fsdp_config\.amp is no longer supported", "step": r"Global Step: +\d"}
"""Line that the program prints once its cluster is up, and after each step."""

CASES: Final = {
    "first_step": Case(
        BENCH, "first_step", "s", targets=(Target(0.5, RAY),), note="from the start of the script to its first step"
    ),
    "first_step_of_the_cluster": Case(
        BENCH, "first_step_of_the_cluster", "s", targets=(Target(0.25, RAY),), note="from the cluster on"
    ),
    "step": Case(
        BENCH, "step", "s", targets=(Target(1.0, RAY),), note=f"mean of the steps after the first, of {STEPS}"
    ),
    "exit": Case(BENCH, "exit", "s", targets=(Target(1.0, RAY),), note="from the last step to the end of the process"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(
        "RLinf's own program, on this framework and on Ray.",
        rounds=3, arguments=None if arguments is None else [*arguments], peers=(RAY,),
    )  # fmt: skip
    if not PYTHON.exists():
        sys.exit("RLinf is not installed: `make rlinf-env`")
    runs = {OURS: partial(times, ours()), **({RAY: partial(times, on_ray(options))} if options.peers else {})}
    found: dict[str, dict[str, list[float]]] = {case: {who: [] for who in runs} for case in CASES}

    def run(who: str) -> list[float]:
        told = runs[who]()
        for case, seconds in told.items():
            found[case][who].append(seconds)
        return [told["first_step"]]

    measures: Mapping[str, Callable[[], Sequence[float]]] = {who: partial(run, who) for who in runs}
    measure.alternate(options.rounds, measures, warm_up=False)
    for name, case in CASES.items():
        rounds = [{who: [each[number]] for who, each in found[name].items()} for number in range(options.rounds)]
        measure.print_row(case.row(rounds))


def ours() -> tuple[list[str], dict[str, str]]:
    return [str(PYTHON), "-m", "rlinf_async.rlinf", str(PROGRAM)], {}


def on_ray(options: Options) -> tuple[list[str], dict[str, str]]:
    """Return the same script as RLinf runs it: all its processes have Ray's packages and the stand-in on their path."""
    (packages,) = options.peers_dir.glob("ray/lib/python3.*/site-packages")
    path = [HERE / "contestants" / "cpu_in_place", PROGRAM.parent, packages]
    return [str(PYTHON), str(PROGRAM)], {"PYTHONPATH": os.pathsep.join(map(str, path))}


def times(command: tuple[list[str], dict[str, str]]) -> dict[str, float]:
    """Return the seconds of one run, by case.

    Raises:
        RuntimeError: the training did not finish.
    """
    words, variables = command
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "RLINF_FAKE_GPUS": "1", **variables}
    seen: dict[str, list[float]] = {mark: [] for mark in MARKS}
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        with subprocess.Popen(
            [*words, f"runner.max_epochs={STEPS}"],
            cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            last: list[str] = []
            for line in process.stdout:
                last = [*last[-40:], line]
                for mark, pattern in MARKS.items():
                    if re.search(pattern, line):
                        seen[mark].append(time.monotonic() - began)
            process.wait(TIMEOUT_S)
        ended = time.monotonic() - began
    steps = seen["step"]
    if process.returncode or len(steps) != STEPS or not seen["cluster"]:
        raise RuntimeError(f"exit code {process.returncode} of {' '.join(words)}:\n{''.join(last)}")
    return {
        "first_step": steps[0],
        "first_step_of_the_cluster": steps[0] - seen["cluster"][0],
        "step": (steps[-1] - steps[0]) / (STEPS - 1),
        "exit": ended - steps[-1],
    }


if __name__ == "__main__":
    main()
