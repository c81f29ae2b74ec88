"""Writer of docs/results.md from the records: tables, plots, failures, versions and commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .intervals import RESAMPLES
from .plot import save_plot
from .reasoning import load_reasoning, reasoning_section
from .records import FOLDER, Failure, Key, Run, finished, load
from .single_files import load_single_files, single_files_section
from .speed import speeds
from .table import by_contestant, final_returns, markdown, number, timed_returns
from .tasks import EVALUATION_SEEDS, TASKS, read_settings
from .trainers import TRAINERS

LABELS: Final = {name: trainer.label for name, trainer in TRAINERS.items()}

INTRODUCTION: Final = f"""\
# Results of the examples

Robots first, beside other PPOs; then [reasoning](#reasoning). `make results` writes this page from the records of runs
in [results/](results), after it has done the runs that have no record yet:
`make results ARGS="--tasks HalfCheetah-v5 --seeds 0-9 --contestants sync sb3"`. The environment of Stable-Baselines3 is
made as [benches/README.md](../benches/README.md) says under Peers.

Every contestant trains on the same machine, on the same number of samples, with the hyperparameters of
[examples/embodiment/config](../examples/embodiment/config): simulators, rollout, minibatch, passes, learning rate and
its schedule, discount, clipping, networks and their initial weights, scale of rewards. No run stops early.

- **rlinf_async** is the example, as `rlinf-launch` runs it.
- **SB3** is the PPO of Stable-Baselines3 with `VecNormalize` for observations; its simulators step in its own process
  (`DummyVecEnv`) or in one process each (`SubprocVecEnv`).
- **single file** is [a PPO in the manner of CleanRL's](../benches/results/references/single_file_ppo.py): one process.

Remaining differences: the example takes advantages and returns anew before each pass, by the value function as it is
then (Andrychowicz et al., arXiv 2006.05990; `algorithm.recompute_advantages=false` does without), the others once. The
example normalises observations by all rollouts before (the first, which acts on them as they
are, by itself when it is learnt from), the others by all until now; without a rollout group it infers in the env
workers, of which there is one on each core. SB3 ends its passes once a minibatch's KL divergence is above 1.5 times
`target_kl`; the example after a pass whose mean is above it; the single file after a pass whose last minibatch's is.

A **final return** is the mean of {len(EVALUATION_SEEDS)} episodes with the most likely actions, on seeds that are the
same for every contestant and were not trained on. A **training return** is the mean of the last 20
episodes of training. Tables give statistics over the seeds of training with 95 % intervals of the percentile bootstrap
({RESAMPLES:,} resamples of the seeds); the interquartile mean leaves out the lowest and the highest quarter (Agarwal et
al., arXiv 2108.13264). Plots show the median over the seeds, and the range from the worst to the best.

Returns at **equal wall time** are taken where the fastest contestant ends. Seconds are those of the training loop,
without the start of processes and the final evaluation. Only runs that were alone on the machine count there, and of
each contestant those of one sitting, the last.
"""


def write_page(folder: Path = FOLDER) -> Path:
    """Write the page beside ``folder``, with its plots in it.

    Returns:
        The path of the page.
    """
    records = {task: load(task, folder) for task in TASKS}
    parts = [INTRODUCTION]
    parts += [_task(task, list(finished(found).values()), folder) for task, found in records.items()]
    every = [record for found in records.values() for record in found]
    parts += [_speed(folder / "speed.json"), _failures(every), _machine(list(finished(every).values()))]
    parts.append(reasoning_section(list(load_reasoning(folder).values())))
    parts.append(single_files_section(list(load_single_files(folder).values())))
    path = folder.with_suffix(".md")
    path.write_text("\n".join(part for part in parts if part))
    return path


def _task(task: str, runs: Sequence[Run], folder: Path) -> str:
    settings = read_settings(task, 0)
    groups = by_contestant(runs, LABELS)
    if not groups:
        return f"## {task}\n\nNo run has finished yet.\n"
    save_plot(folder / f"{task}.svg", task, groups)
    lines = [f"## {task}", "", f"Final return after {settings.samples:,} samples:", "", final_returns(groups), ""]
    timed = timed_returns(groups)
    lines += [
        f"Training return at equal wall time:\n\n{timed}" if timed else "No run was alone on the machine yet.",
        "",
    ]
    lines += [f"![Learning curves of {task}]({folder.name}/{task}.svg)", ""]
    return "\n".join(lines)


def _speed(path: Path) -> str:
    if not path.exists():
        return ""
    row = json.loads(path.read_text())
    rows = [["", row["unit"], "rlinf_async, sync, over it"]]
    rows += [[LABELS[name], number(rate), f"{ratio:.2f}"] for name, (rate, ratio) in speeds(row).items()]
    title = f"## Speed\n\n`python -m benches.results --speed`: {row['note']}; medians of {row['rounds']} rounds"
    return f"{title}, ratios within a round.\n\n{markdown(rows)}\n"


def _failures(records: Sequence[Run | Failure]) -> str:
    failures = [record for record in records if isinstance(record, Failure)]
    if not failures:
        return "## Failures\n\nNo run failed.\n"
    done = finished(records)
    rows = [["run", "date", "error", "repeated"]]
    for failure in failures:
        repeated = "yes" if Key(failure.task, failure.contestant, failure.seed) in done else "no"
        name = f"{failure.task}, {LABELS[failure.contestant]}, seed {failure.seed}"
        rows.append([name, failure.date, failure.error.replace("|", "\\|"), repeated])
    return f"## Failures\n\n{markdown(rows)}\n"


def _machine(runs: Sequence[Run]) -> str:
    if not runs:
        return ""
    dates = sorted(run.date[:10] for run in runs)
    cores = "/".join(map(str, sorted({run.cores for run in runs})))
    versions = sorted({f"{name} {version}" for run in runs for name, version in run.versions.items()})
    beside = sum(run.jobs > 1 for run in runs)
    return (
        f"## Machine\n\n{len(runs)} runs from {dates[0]} to {dates[-1]}, {cores} cores; {beside} of them were not "
        f"alone on the machine, and had one torch thread. {', '.join(versions)}.\n"
    )
