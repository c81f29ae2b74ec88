"""Runs of the contestants: starts the programs, a bounded number at a time, and keeps a record of each."""

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
    """Records of the keys' runs, as they end.

    Args:
        jobs: runs at a time.
        beside: other programs that compute on the machine meanwhile.  With them or several jobs times do not count,
            and torch gets one thread: its threads wait for each other in loops that others' runs interrupt.
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
    """Runs one program to its end, in ``folder``: its log is there, and MuJoCo's.

    Raises:
        FileNotFoundError: the program is not there.
        RuntimeError: it failed.
    """
    run_program(
        trainer.command(settings, folder), folder, environment, settings=json.dumps(dataclasses.asdict(settings))
    )


def run_program(
    command: Sequence[str], folder: Path, environment: dict[str, str] | None = None, *, settings: str | None = None
) -> None:
    """Runs a command to its end in ``folder``, which is made anew, with ``settings.json`` where there are settings.

    Raises:
        RuntimeError: it failed; its last words.
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
    """The record of a run that left its results in ``folder``.

    Raises:
        FileNotFoundError: there is no evaluation.json.
        ValueError: it trained on another number of samples, or was evaluated on other seeds.
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
    """The instant, ISO 8601, to the minute."""
    return datetime.datetime.now().astimezone().isoformat(timespec="minutes")
