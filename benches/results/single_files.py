"""Runs of the one-file examples over seeds, with the last result that each prints, and their part of the page."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..contestant import ROOT
from .records import FOLDER
from .runs import LOGS, run_program, today
from .table import markdown

RECORDS: Final = "single_files.jsonl"

EXAMPLES: Final = ("ppo_single_file", "grpo_single_file")
"""Files of examples/, without their suffix."""

INTRODUCTION: Final = """\
## One-file examples

`make results ARGS="--single-files --seeds 0-2"` runs what has no record yet: `python examples/EXAMPLE.py --seed SEED`.
Seconds are those of the whole command.
"""


@dataclass(frozen=True)
class SingleFileRun:
    """A finished run.

    Attributes:
        date: end of the run, ISO 8601.
        jobs: number of programs that ran on the machine at the time, including this one.
        cores: CPU cores of the machine.
        measure, result: text before and after the colon in its last line.
        seconds: duration of the whole command.
    """

    example: str
    seed: int
    date: str
    jobs: int
    cores: int
    measure: str
    result: str
    seconds: float


def load_single_files(folder: Path = FOLDER) -> dict[tuple[str, int], SingleFileRun]:
    """Return the last run of each example and seed."""
    path = folder / RECORDS
    lines = path.read_text().splitlines() if path.exists() else []
    runs = [SingleFileRun(**json.loads(line)) for line in lines]
    return {(run.example, run.seed): run for run in runs}


def run_single_file(example: str, seed: int, *, jobs: int, folder: Path = FOLDER) -> SingleFileRun:
    """Run an example, and append its record.

    Raises:
        RuntimeError: the run failed (the message has its last output), or did not print a result.
    """
    logs = LOGS / "single_files" / f"{example}-{seed}"
    began = time.monotonic()
    run_program([sys.executable, str(ROOT / "examples" / f"{example}.py"), "--seed", str(seed)], logs)
    seconds = round(time.monotonic() - began, 1)
    said = (logs / "log").read_text().strip().splitlines()
    measure, colon, result = said[-1].rpartition(": ") if said else ("", "", "")
    if not colon:
        raise RuntimeError(f"{example} seed {seed} has printed no result: see {logs / 'log'}")
    found = SingleFileRun(example, seed, today(), jobs, os.cpu_count() or 1, measure, result, seconds)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / RECORDS).open("a") as file:
        file.write(json.dumps(dataclasses.asdict(found), separators=(",", ":")) + "\n")
    return found


def single_files_section(runs: Sequence[SingleFileRun]) -> str:
    """Return the part of the page, with a row for each example."""
    rows = [["example", "result", "by seed", "seconds"]]
    for example in EXAMPLES:
        ordered = sorted((run for run in runs if run.example == example), key=lambda run: run.seed)
        if ordered:
            results = "; ".join(f"{run.seed}: {run.result}" for run in ordered)
            seconds = ", ".join(f"{run.seconds:.0f}" for run in ordered)
            link = f"[{example}.py](../examples/{example}.py)"
            rows.append([link, ordered[-1].measure, results, seconds])
    return f"{INTRODUCTION}\n{markdown(rows)}\n" if len(rows) > 1 else ""
