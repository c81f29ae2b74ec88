"""Runner of the missing runs of the examples' results; writes docs/results.md."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .page import write_page
from .reasoning import VARIANTS, ReasoningRun, load_reasoning, run_reasoning
from .records import FOLDER, Failure, Key, append, load, missing
from .runs import run_all
from .single_files import EXAMPLES, SingleFileRun, load_single_files, run_single_file
from .speed import measure_speed
from .tasks import TASKS
from .trainers import TRAINERS

DEFAULT = ("sync", "async", "sb3", "single_file")


def main(arguments: Sequence[str] | None = None) -> int:
    flags = _parse(arguments)
    if flags.speed:
        measure_speed(flags.contestants, flags.rounds, flags.records)
    failed = 0
    if flags.reasoning is not None:
        failed = _run_reasoning(flags)
    elif flags.single_files:
        failed = _run_single_files(flags)
    elif not (flags.speed or flags.page):
        failed = _run_missing(flags)
    print(f"written: {write_page(flags.records)}")
    return 1 if failed else 0


def parse_seeds(text: str) -> list[int]:
    """Parse ``0-2,7`` as ``[0, 1, 2, 7]``."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def _run_missing(flags: argparse.Namespace) -> int:
    """Make the missing runs; return the number of failures."""
    # Seeds are the outer loop, so that an interrupted comparison has the same seeds of every contestant.
    wanted = [
        Key(task, contestant, seed)
        for seed, task, contestant in itertools.product(flags.seeds, flags.tasks, flags.contestants)
    ]
    records = [record for task in flags.tasks for record in load(task, flags.records)]
    keys = missing(wanted, records, alone=flags.alone)
    print(f"{len(wanted) - len(keys)} runs have a record, {len(keys)} to do", flush=True)
    failed = 0
    for record in run_all(keys, jobs=flags.jobs, beside=flags.beside):
        append(record, flags.records)
        name = f"{record.task} {record.contestant} seed {record.seed}"
        if isinstance(record, Failure):
            failed += 1
            print(f"{name}: FAILED, {record.error}", file=sys.stderr, flush=True)
        else:
            print(f"{name}: {record.final_return:.1f} in {record.training_seconds:.0f} s", flush=True)
    return failed


def _run_reasoning(flags: argparse.Namespace) -> int:
    def tell(run: ReasoningRun) -> str:
        return f"pass@1 {run.evaluation['pass@1_before']:.1%} -> {run.evaluation['pass@1']:.1%}"

    return _run_seeds(flags, flags.reasoning or VARIANTS, load_reasoning(flags.records), run_reasoning, tell)


def _run_single_files(flags: argparse.Namespace) -> int:
    def tell(run: SingleFileRun) -> str:
        return f"{run.measure}: {run.result}"

    return _run_seeds(flags, EXAMPLES, load_single_files(flags.records), run_single_file, tell)


def _run_seeds(
    flags: argparse.Namespace,
    names: Iterable[str],
    have: Mapping[tuple[str, int], Any],
    run: Callable[..., Any],
    tell: Callable[[Any], str],
) -> int:
    """Make the runs of each name and seed without a record; return the number of failures."""
    failed = 0
    for seed, name in itertools.product(flags.seeds, names):
        if (name, seed) in have and not (flags.alone and have[name, seed].jobs > 1):
            continue
        try:
            told = tell(run(name, seed, jobs=1 + flags.beside, folder=flags.records))
        except RuntimeError as error:
            failed += 1
            print(f"{name} seed {seed}: FAILED, {error}", file=sys.stderr, flush=True)
        else:
            print(f"{name} seed {seed}: {told}", flush=True)
    return failed


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benches.results", description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=parse_seeds, default="0-4", help="0-4 by default; 0-2,7 is possible")
    parser.add_argument("--contestants", nargs="+", choices=TRAINERS, default=list(DEFAULT))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; with more than one, times do not count")
    parser.add_argument("--beside", type=int, default=0, help="other programs that compute on the machine meanwhile")
    parser.add_argument("--alone", action="store_true", help="repeat runs that were not alone on the machine")
    parser.add_argument("--records", type=Path, default=FOLDER, help="folder of the records; the page is beside it")
    parser.add_argument("--page", action="store_true", help="no runs: write the page from the records")
    parser.add_argument("--speed", action="store_true", help="samples per second, in alternating runs on HalfCheetah")
    parser.add_argument("--reasoning", nargs="*", choices=VARIANTS, help="runs of the reasoning example instead")
    parser.add_argument("--single-files", action="store_true", help="runs of the one-file examples instead")
    parser.add_argument("--rounds", type=int, default=5, help="of --speed (default %(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
