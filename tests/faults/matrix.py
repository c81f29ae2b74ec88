"""The fault matrix: runs the tests of its rows many times, and writes docs/faults.md.

    python -m tests.faults.matrix                     # the rows that have no record yet, then the page
    python -m tests.faults.matrix --rows P1 N2        # these, anew
    python -m tests.faults.matrix --page              # the page only

A test that takes up to five seconds runs 20 times, another one five times.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.faults.rows import ROWS, Row

ROOT: Final = Path(__file__).resolve().parents[2]
RECORDS: Final = ROOT / "docs" / "faults.jsonl"
WHOLE_RUNS: Final = ROOT / "docs" / "whole_runs.jsonl"
"""What nemesis, soak and cycles have told: written by hand, with the command that tells it again."""

PAGE: Final = ROOT / "docs" / "faults.md"

_SHORT_S: Final = 5.0
_TRIALS, _TRIALS_OF_LONG_ONES = 20, 5

_NOT_AGAIN: Final = frozenset({"tests/test_long_waits.py::test_a_stopped_rank_is_named_with_what_it_was_in"})
"""Of a wait that took as long before, less is said: each trial is a process of its own."""

_KINDS: Final = {
    "P": "Processes", "N": "Networks", "C": "Calls and data", "Q": "Channels", "E": "Experiences", "R": "Resources",
    "S": "Security", "L": "Launches",
}  # fmt: skip

_HEAD: Final = """\
# Faults

What is promised when something breaks, and the tests that hold the framework to it: real processes, signals, sockets,
`sshd`s and network namespaces on one machine. `make faults` runs the tests of every row that has no record in
[faults.jsonl](faults.jsonl), and writes this page.

A bound is asserted inside of the row's tests. Seconds are those of a whole test, in which more is done than to break
something: the median and the longest of n trials of each of its tests.
"""


@dataclass(frozen=True)
class Record:
    """Trials of a row.

    Attributes:
        trials: of each of its tests, those that passed.
        seconds, longest: median and maximum of all of them.
        failed, skipped: trials that did so.
    """

    key: str
    date: str
    tests: list[str]
    trials: int
    seconds: float
    longest: float
    failed: int
    skipped: int


def run_row(row: Row) -> Record:
    """The trials of its tests."""
    told = [trials_of(test) for test in row.tests]
    everything = [each for outcomes in told for each in outcomes]
    passed = [seconds for outcome, seconds in everything if outcome == "passed"]
    return Record(
        row.key,
        datetime.date.today().isoformat(),
        list(row.tests),
        min(sum(outcome == "passed" for outcome, _ in outcomes) for outcomes in told),
        round(statistics.median(passed), 2) if passed else 0.0,
        round(max(passed, default=0.0), 2),
        sum(outcome == "failed" for outcome, _ in everything),
        sum(outcome == "skipped" for outcome, _ in everything),
    )


@functools.cache
def trials_of(test: str) -> list[tuple[str, float]]:
    """Runs a test as often as it is short; once only where several rows have it."""
    outcomes = _run(test, 1)
    if all(outcome == "passed" for outcome, _ in outcomes):
        longest = max(seconds for _, seconds in outcomes)
        outcomes += _run(test, (_TRIALS if longest <= _SHORT_S else _TRIALS_OF_LONG_ONES) - 1)
    return outcomes


def _run(test: str, trials: int) -> list[tuple[str, float]]:
    """Outcome and seconds of each trial; of one test with several parameters, of each of them."""
    if trials > 1 and (test in _NOT_AGAIN or "[" in test):  # one more parameter would make it another test
        return [outcome for _ in range(trials) for outcome in _run(test, 1)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trials.jsonl")
        options = ["-q", "-p", "no:cacheprovider", "-p", "tests.faults.trials", "-m", ""]
        argv = [*options, "--trials", str(trials), "--trials-file", str(path), test]
        done = subprocess.run([sys.executable, "-m", "pytest", *argv], cwd=ROOT, capture_output=True, text=True)
        lines = path.read_text().splitlines() if path.exists() else []
    told = [json.loads(line) for line in lines]
    if not told or (done.returncode and not any(each["outcome"] == "failed" for each in told)):
        raise SystemExit(f"{test}: pytest ended with {done.returncode}\n{done.stdout}{done.stderr}")
    if done.returncode:
        print(done.stdout[-6000:], flush=True)
    return [(each["outcome"], each["seconds"]) for each in told]


def read_records() -> dict[str, Record]:
    """The newest record of each row whose tests are still the same."""
    tests = {row.key: list(row.tests) for row in ROWS}
    lines = RECORDS.read_text().splitlines() if RECORDS.exists() else []
    found = [Record(**json.loads(line)) for line in lines]
    return {record.key: record for record in found if tests.get(record.key) == record.tests}


def page(records: dict[str, Record]) -> str:
    """docs/faults.md."""
    parts = [_HEAD]
    for kind, title in _KINDS.items():
        parts.append(f"\n## {title}\n\n| | fault | promise | within | n | median | longest | tests |")
        parts.append("| --- | --- | --- | --: | --: | --: | --: | --- |")
        parts += [_line(row, records.get(row.key)) for row in ROWS if row.key.startswith(kind)]
    parts.append("\n## Whole runs\n\n| command | date | what it told |\n| --- | --- | --- |")
    runs = [json.loads(line) for line in WHOLE_RUNS.read_text().splitlines()]
    parts += [f"| `{run['command']}` | {run['date']} | {run['told']} |" for run in runs]
    dates = sorted({record.date for record in records.values()})
    parts.append(f"\nOn 2 cores, {dates[0]} to {dates[-1]}." if dates else "")
    return "\n".join(parts) + "\n"


def _line(row: Row, record: Record | None) -> str:
    tests = "<br>".join(f"[{test.partition('::')[2]}](../{test.partition('::')[0]})" for test in row.tests)
    n, seconds, longest = "", "", ""
    if record is not None:
        failed = f", {record.failed} failed" if record.failed else ""
        n = f"{record.trials}{failed}" if record.trials else "skipped"
        seconds, longest = f"{record.seconds:.2f} s", f"{record.longest:.2f} s"
    return f"| {row.key} | {row.fault} | {row.promise} | {row.bound} | {n} | {seconds} | {longest} | {tests} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs rows, and writes the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.matrix", description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=[row.key for row in ROWS], metavar="ROW", help="run these, anew")
    parser.add_argument("--page", action="store_true", help="write the page only")
    flags = parser.parse_args(arguments)
    known = read_records()
    wanted = [row for row in ROWS if (row.key in flags.rows if flags.rows is not None else row.key not in known)]
    for row in [] if flags.page else wanted:
        record = run_row(row)
        with RECORDS.open("a") as file:
            file.write(json.dumps(asdict(record)) + "\n")
        print(f"{record.key}: {record.trials} trials, {record.seconds} s, longest {record.longest} s", flush=True)
    PAGE.write_text(page(read_records()))


if __name__ == "__main__":
    main()
