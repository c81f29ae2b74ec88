"""Runner of the contestants' programs, a bounded number at a time, with a record of each run."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from ..contestant import ROOT
from .curves import read_curve
from .records import Failure, Key, Run
from .tasks import Settings, read_settings
from .trainers import TRAINERS, Trainer

LOGS: Final = ROOT / "logs" / "results"
PACKAGES: Final = ("torch", "gymnasium", "mujoco")


def run_all(keys: Sequence[Key], *, jobs: int, beside: int) -> Iterator[Run | Failure]:
    """Yield the records of the keys' runs, as they end.

    Args:
        jobs: number of concurrent runs.
        beside: number of other programs that compute on the machine. With them, or with several jobs, times do not
            count, and torch gets one thread: its threads would busy-wait for each other while other runs interrupt
                them.
    """
    environment = os.environ | ({"OMP_NUM_THREADS": "1"} if jobs + beside > 1 else {})
    with ThreadPoolExecutor(jobs) as threads:
        waiting = [threads.submit(_record, key, jobs + beside, environment) for key in keys]
        try:
            yield from (future.result() for future in as_completed(waiting))
        finally:
            threads.shutdown(cancel_futures=True)


def _record(key: Key, jobs: int, environment: dict[str, str]) -> Run | Failure:
    folder = LOGS / key.task / f"{key.contestant}-{key.seed}"
    trainer, settings = TRAINERS[key.contestant], read_settings(key.task, key.seed)
    try:
        train(trainer, settings, folder, environment)
        return finished_run(key, settings, folder, jobs)
    except (OSError, RuntimeError, ValueError) as error:
        return Failure(*key, today(), str(error))


def train(trainer: Trainer, settings: Settings, folder: Path, environment: dict[str, str] | None = None) -> None:
    """Run one program to its end in ``folder``, which has its log and MuJoCo's.

    Raises:
        FileNotFoundError: the program does not exist.
        RuntimeError: the program failed.
    """
    run_program(
        trainer.command(settings, folder), folder, environment, settings=json.dumps(dataclasses.asdict(settings))
    )


def run_program(
    command: Sequence[str], folder: Path, environment: dict[str, str] | None = None, *, settings: str | None = None
) -> None:
    """Run a command to its end in a new ``folder``, with ``settings.json`` if there are settings.

    Raises:
        RuntimeError: the command failed; the message has its last output.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if settings is not None:
        (folder / "settings.json").write_text(settings)
    with (folder / "log").open("w") as log:
        code = subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT).returncode
    if code:
        said = (folder / "log").read_text().strip().splitlines()
        raise RuntimeError(f"exit status {code}: {said[-1] if said else 'it said nothing'}")


def finished_run(key: Key, settings: Settings, folder: Path, jobs: int) -> Run:
    """Return the record of a run that left its results in ``folder``.

    Raises:
        FileNotFoundError: there is no evaluation.json.
        ValueError: the run trained on another number of samples, or was evaluated on other seeds.
    """
    evaluation = json.loads((folder / "evaluation.json").read_text())
    for name, wanted in (("samples", settings.samples), ("episode_seeds", settings.evaluation_seeds)):
        if evaluation[name] != wanted:
            raise ValueError(f"{folder}/evaluation.json: {name} is {evaluation[name]}, the comparison's is {wanted}")
    curve = read_curve(folder / "tensorboard", TRAINERS[key.contestant].tag, settings.samples)
    return Run(
        *key,
        date=today(),
        jobs=jobs,
        cores=os.cpu_count() or 1,
        samples=settings.samples,
        training_seconds=round(evaluation.get("training_seconds", curve.seconds[-1]), 2),
        returns=[float(f"{value:.5g}") for value in evaluation["returns"]],
        threads=evaluation.get("threads"),
        versions=evaluation.get("versions") or {name: importlib.metadata.version(name) for name in PACKAGES},
        curve=curve,
    )


def today() -> str:
    """Return the current time in ISO 8601, to the minute."""
    return datetime.datetime.now().astimezone().isoformat(timespec="minutes")
