"""Records of the reasoning example's runs, and their part of the page."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from benches.contestant import ROOT
from benches.results.reasoning import RECORDS, ReasoningRun, load_reasoning, read_diagnostics, reasoning_section

EVALUATION = {"seed": 1, "steps": 960, "seconds": 61.4, "accuracy_before": 0.05, "accuracy": 0.5}
RUN = ReasoningRun("countdown", 1, "2026-01-02T03:04+00:00", 1, 2, EVALUATION, {"entropy": (0.6, 0.2)})


def write(folder: Path, *runs: ReasoningRun) -> None:
    (folder / RECORDS).write_text("".join(json.dumps(dataclasses.asdict(run)) + "\n" for run in runs))


def test_of_two_runs_with_one_seed_the_later_counts(tmp_path: Path) -> None:
    later = dataclasses.replace(RUN, cores=4)
    write(tmp_path, RUN, later)
    assert [run.cores for run in load_reasoning(tmp_path).values()] == [4]


def test_without_records_there_are_no_runs_and_no_words(tmp_path: Path) -> None:
    assert load_reasoning(tmp_path) == {}
    assert reasoning_section([]) == ""


def test_a_variant_has_its_command_and_a_row_for_each_seed_in_order(tmp_path: Path) -> None:
    first = dataclasses.replace(RUN, seed=0, diagnostics={"entropy": (0.7, 0.1)})
    write(tmp_path, RUN, first)
    section = reasoning_section(list(load_reasoning(tmp_path).values()))
    assert "    ./run.sh countdown_disaggregated runner.seed=SEED\n" in section
    assert "### Arithmetic" not in section
    rows = [line for line in section.splitlines() if line.startswith("| ") and "→" in line]
    assert rows == [
        "| 0 | 5.0% → 50.0% | 960 | 0.70 → 0.10 | 61 |",
        "| 1 | 5.0% → 50.0% | 960 | 0.60 → 0.20 | 61 |",
    ]


def test_diagnostics_are_means_over_the_first_and_the_last_training_steps(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "tensorboard")) as writer:
        for step in range(60):
            writer.add_scalar("train/entropy", 1.0 if step < 20 else 0.5 if step < 40 else 0.25, step)
    assert read_diagnostics(tmp_path) == {"entropy": (1.0, 0.25)}


def test_a_plot_of_a_run_shows_its_rewards_and_its_accuracy(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "tensorboard")) as writer:
        for step in range(40):
            writer.add_scalar("train/reward", step / 40, step)
        writer.add_scalar("eval/accuracy", 0.5, 40)
    plot = tmp_path / "run.svg"
    # In a process of its own: matplotlib keeps the files of its fonts open.
    subprocess.run([sys.executable, "-m", "benches.results.run_plot", tmp_path, plot], cwd=ROOT, check=True)
    assert {"reward, mean of 20 steps", "accuracy, held out"} <= set(re.findall(r">([^<>]+)</text>", plot.read_text()))
