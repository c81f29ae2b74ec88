"""Speed of training on one task: samples per second of every contestant, in alternating runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..measure import OURS, Case, alternate, print_row
from .records import FOLDER, Key
from .runs import LOGS, finished_run, train
from .tasks import Settings, read_settings
from .trainers import TRAINERS

TASK: Final = "HalfCheetah-v5"
UPDATES: Final = 12
"""Samples of a run; the last of its first episodes end in its eighth part."""

CASE: Final = Case(
    "results",
    "training_half_cheetah",
    "samples/s",
    more_is_better=True,
    beside={"async": "the same with rollouts and updates that overlap"},
    note=f"whole training loops of {UPDATES} updates; every program with its own default of torch threads",
)


def measure_speed(contestants: Sequence[str], rounds: int, folder: Path = FOLDER) -> dict[str, Any]:
    """Print the row of :data:`CASE`, and keep it in ``folder``/speed.json.

    Raises:
        ValueError: ``sync``, the baseline of the others, is not among the contestants.
    """
    settings = read_settings(TASK, 0)
    settings = dataclasses.replace(settings, updates=UPDATES, evaluation_seeds=settings.evaluation_seeds[:1])
    measures = {_name(name): lambda name=name: [samples_per_second(name, settings)] for name in contestants}
    row = CASE.row(alternate(rounds, measures, warm_up=True))
    print_row(row)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "speed.json").write_text(json.dumps(row, indent=2) + "\n")
    return row


def samples_per_second(contestant: str, settings: Settings) -> float:
    """Return the samples per second of one run's training loop."""
    folder = LOGS / "speed" / contestant
    train(TRAINERS[contestant], settings, folder)
    run = finished_run(Key(settings.env, contestant, settings.seed), settings, folder, jobs=1)
    return run.samples / run.training_seconds


def speeds(row: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the samples per second of each contestant in a row, and the ratio of ours to it."""
    found = {"sync": (row["median"], 1.0)}
    found |= {name: (beside["value"], beside["ratio"]) for name, beside in row.get("beside", {}).items()}
    return found | {name: (peer["median"], peer["ratio"]) for name, peer in row["peers"].items()}


def _name(contestant: str) -> str:
    return OURS if contestant == "sync" else contestant
