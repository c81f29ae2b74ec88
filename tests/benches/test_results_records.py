"""Records of runs: which are missing, which count, and the page that is written from them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from benches.contestant import ROOT
from benches.results.__main__ import parse_seeds
from benches.results.curves import Curve
from benches.results.records import Failure, Key, Run, append, finished, load, missing
from benches.results.table import alone, by_contestant, equal_seconds, final_returns, markdown, number, timed_returns

KEY = Key("HalfCheetah-v5", "sb3", 0)
CURVE = Curve([100, 200], [50.0, 100.0], [0.0, 10.0])
RUN = Run(*KEY, "2026-01-02T03:04+00:00", 1, 2, 200, 100.0, [9.0, 11.0], 2, {"torch": "2.13.0"}, CURVE)
FAILURE = Failure(*KEY, "2026-01-01T00:00+00:00", "exit status 1: no | robot")
LABELS = {"sync": "ours", "sb3": "SB3"}


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    for record in (FAILURE, RUN):
        append(record, tmp_path / "results")
    assert load(KEY.task, tmp_path / "results") == [FAILURE, RUN]
    assert load("Reacher-v5", tmp_path / "results") == []


def test_a_run_is_missing_until_one_has_finished() -> None:
    wanted = [KEY, KEY._replace(seed=1)]
    assert missing(wanted, []) == wanted
    assert missing(wanted, [FAILURE]) == wanted
    assert missing(wanted, [FAILURE, RUN]) == [KEY._replace(seed=1)]


def test_a_run_that_was_not_alone_is_missing_where_times_count() -> None:
    beside = replace(RUN, jobs=2)
    assert missing([KEY], [beside]) == []
    assert missing([KEY], [beside], alone=True) == [KEY]
    assert missing([KEY], [beside, RUN], alone=True) == []


def test_of_several_runs_the_one_that_was_alone_counts_and_then_the_last() -> None:
    beside, later = replace(RUN, jobs=2), replace(RUN, date="2026-02-02T00:00+00:00")
    assert finished([RUN, beside]) == {KEY: RUN}
    assert finished([beside, RUN, later]) == {KEY: later}


def test_ranges_and_single_seeds_make_a_list() -> None:
    assert parse_seeds("0-2,7") == [0, 1, 2, 7]


def test_equal_wall_time_is_the_fastest_contestants_end_among_runs_that_were_alone() -> None:
    fast = replace(RUN, contestant="sync", training_seconds=75.0)
    crowded = replace(fast, seed=1, training_seconds=5.0, jobs=2)
    groups = by_contestant([RUN, crowded, fast], LABELS)
    assert list(groups) == ["ours", "SB3"]
    assert [run.seed for run in groups["ours"]] == [0, 1]
    assert alone(groups["ours"]) == [fast]
    assert equal_seconds(groups) == 75.0
    assert timed_returns(groups) == markdown(
        [
            ["", "runs", "at 75 s: mean", "median", "interquartile mean", "seconds", "samples/s", "torch threads"],
            ["ours", "1", "5.00", "5.00", "5.00", "75", "2.67", "2"],
            ["SB3", "1", "5.00", "5.00", "5.00", "100", "2.00", "2"],
        ]
    )
    assert timed_returns({"SB3": [replace(RUN, jobs=2)]}) is None


def test_times_of_another_sitting_do_not_count_beside_those_of_the_last() -> None:
    earlier = replace(RUN, seed=1, date="2026-01-01T07:00+00:00")
    last, beside = replace(RUN, date="2026-01-01T10:00+00:00"), replace(RUN, seed=2, date="2026-01-01T08:30+00:00")
    assert alone([earlier, last, beside]) == [last, beside]
    assert alone([]) == []


def test_final_returns_are_told_for_every_seed() -> None:
    other = replace(RUN, seed=1, returns=[4000.0, 4002.0])
    table = final_returns(by_contestant([other, RUN], LABELS)).splitlines()
    mean = "2,006 [10.0, 4,001]"
    assert table[-1] == f"| SB3 | 2 | {mean} | {mean} | {mean} | 0: 10.0; 1: 4,001 |"


def test_numbers_keep_three_digits() -> None:
    assert [number(value) for value in (-4.321, 43.21, -432.1, 4321.0)] == ["-4.32", "43.2", "-432", "4,321"]


def write_page(folder: Path) -> None:
    """In a process of its own: matplotlib keeps the files of its fonts open."""
    subprocess.run([sys.executable, "-m", "benches.results", "--page", "--records", folder], cwd=ROOT, check=True)


def test_the_page_tells_finished_and_failed_runs(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    for record in (FAILURE, RUN, replace(FAILURE, seed=3)):
        append(record, folder)
    write_page(folder)
    page = (tmp_path / "results.md").read_text()
    assert "| SB3, DummyVecEnv | 1 | 10.0 | 10.0 | 10.0 | 0: 10.0 |" in page
    told = "2026-01-01T00:00+00:00 | exit status 1: no \\| robot"
    assert f"| HalfCheetah-v5, SB3, DummyVecEnv, seed 0 | {told} | yes |" in page
    assert f"| HalfCheetah-v5, SB3, DummyVecEnv, seed 3 | {told} | no |" in page
    plot = (folder / "HalfCheetah-v5.svg").read_text()
    assert "<svg" in plot
    write_page(folder)
    assert (folder / "HalfCheetah-v5.svg").read_text() == plot
