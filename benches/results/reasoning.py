"""Runs of the reasoning example: accuracy and pass@k before and after, over seeds, and their part of the page."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..contestant import ROOT
from .curves import read_events
from .records import FOLDER
from .runs import LOGS, run_program, today
from .table import markdown

EXAMPLE: Final = ROOT / "examples" / "reasoning" / "main_grpo.py"
RECORDS: Final = "reasoning.jsonl"
ENDS: Final = 20
"""Training steps at the start and at the end over which diagnostics are averaged."""

DIAGNOSTICS: Final = {"entropy": "entropy", "response_length": "length", "groups_without_signal": "without signal"}


@dataclass(frozen=True)
class Variant:
    """One command of the example.

    Attributes:
        title: name on the page.
        config: file of examples/reasoning/config/math.
        overrides: overrides in addition to the seed.
    """

    title: str
    config: str
    overrides: tuple[str, ...] = ()


VARIANTS: Final = {
    "countdown": Variant("Countdown, GRPO", "countdown_disaggregated"),
    "countdown_vllm": Variant(
        "Countdown, GRPO, vLLM",
        "countdown_disaggregated",
        ("rollout.engine=vllm", "runner.max_steps=400", "runner.eval_samples=4", "runner.eval_interval=100"),
    ),
    "arithmetic": Variant("Arithmetic, GRPO", "two_terms_disaggregated", ("runner.eval_samples=64",)),
    "imitation": Variant(
        "Arithmetic, imitation alone",
        "two_terms_disaggregated",
        ("runner.eval_samples=64", "runner.max_steps=0", "actor.warm_start.steps=3000"),
    ),
}
"""Variants by their names in flags and records."""


INTRODUCTION: Final = f"""\
## Reasoning

`make results ARGS="--reasoning --seeds 0-2"` runs what has no record yet.

Shares of the held-out problems, before → after: **accuracy** of the most likely responses; **pass@k**, the chance that
one of k responses, sampled at the temperature of training, is right (unbiased: Chen et al., arXiv 2107.03374). Before
is after the warm start. Entropy (nats a token), length (tokens) and the share of groups without a signal are means over
the first and the last {ENDS} training steps. Seconds are those of the whole run.
"""


@dataclass(frozen=True)
class ReasoningRun:
    """A finished run.

    Attributes:
        date: end of the run, ISO 8601.
        jobs: number of programs that ran on the machine at the time, including this one.
        cores: CPU cores of the machine.
        evaluation: its evaluation.json: ``accuracy``, ``pass@k``, the same with ``_before``, ``seconds``.
        diagnostics: mean of each scalar over the first and the last :data:`ENDS` training steps.
    """

    variant: str
    seed: int
    date: str
    jobs: int
    cores: int
    evaluation: Mapping[str, float]
    diagnostics: Mapping[str, tuple[float, float]]


def load_reasoning(folder: Path = FOLDER) -> dict[tuple[str, int], ReasoningRun]:
    """Return the last run of each variant and seed."""
    path = folder / RECORDS
    lines = path.read_text().splitlines() if path.exists() else []
    runs = [ReasoningRun(**json.loads(line)) for line in lines]
    return {(run.variant, run.seed): run for run in runs}


def run_reasoning(variant: str, seed: int, *, jobs: int, folder: Path = FOLDER) -> ReasoningRun:
    """Run a variant, and append its record.

    Raises:
        RuntimeError: the run failed; the message has its last output.
    """
    chosen, logs = VARIANTS[variant], LOGS / "reasoning" / f"{variant}-{seed}"
    words = ["--config", chosen.config, *chosen.overrides, f"runner.seed={seed}", f"runner.logger.log_path={logs}"]
    run_program([sys.executable, str(EXAMPLE), *words], logs)
    evaluation = json.loads((logs / "evaluation.json").read_text())
    found = ReasoningRun(variant, seed, today(), jobs, os.cpu_count() or 1, evaluation, read_diagnostics(logs))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / RECORDS).open("a") as file:
        file.write(json.dumps(dataclasses.asdict(found), separators=(",", ":")) + "\n")
    return found


def read_diagnostics(logs: Path) -> dict[str, tuple[float, float]]:
    """Return means at the start and the end of training, from the event files; empty without training."""
    events = read_events(logs / "tensorboard")
    found = {}
    for name in DIAGNOSTICS:
        if f"train/{name}" in events.Tags()["scalars"]:
            values = [event.value for event in events.Scalars(f"train/{name}")]
            found[name] = (_mean(values[:ENDS]), _mean(values[-ENDS:]))
    return found


def reasoning_section(runs: Sequence[ReasoningRun]) -> str:
    """Return the part of the page, with a table for each variant."""
    if not runs:
        return ""
    parts = [INTRODUCTION]
    for name, variant in VARIANTS.items():
        ordered = sorted((run for run in runs if run.variant == name), key=lambda run: run.seed)
        if ordered:
            command = " ".join(("./run.sh", variant.config, *variant.overrides, "runner.seed=SEED"))
            parts.append(f"### {variant.title}\n\n    {command}\n\n{markdown(_rows(ordered))}\n")
    dates = sorted(run.date[:10] for run in runs)
    crowded = sum(run.jobs > 1 for run in runs)
    parts.append(f"{len(runs)} runs from {dates[0]} to {dates[-1]}; {crowded} of them were not alone on the machine.\n")
    return "\n".join(parts)


def _rows(runs: Sequence[ReasoningRun]) -> list[list[str]]:
    names = [name for name in runs[0].evaluation if f"{name}_before" in runs[0].evaluation]
    rows = [["seed", *names, "training steps", *(DIAGNOSTICS[name] for name in runs[0].diagnostics), "seconds"]]
    for run in runs:
        told = run.evaluation
        shares = [f"{told[f'{name}_before']:.1%} → {told[name]:.1%}" for name in names]
        ends = [_ends(name, *run.diagnostics[name]) for name in run.diagnostics]
        rows.append([str(run.seed), *shares, f"{told['steps']:,.0f}", *ends, f"{told['seconds']:.0f}"])
    return rows


def _ends(name: str, first: float, last: float) -> str:
    if name == "groups_without_signal":
        return f"{first:.0%} → {last:.0%}"
    return f"{first:.2f} → {last:.2f}"


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4)
