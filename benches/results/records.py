"""Records of runs, finished and failed, as lines of JSON in the repository: one file per task."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..contestant import ROOT
from .curves import Curve

FOLDER: Final = ROOT / "docs" / "results"


class Key(NamedTuple):
    """Contestant, task and seed of a run."""

    task: str
    contestant: str
    seed: int


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        date: end of the run, ISO 8601.
        jobs: number of programs that ran on the machine at the time, including this one; times count only if it is 1.
        cores: CPU cores of the machine.
        training_seconds: duration of the training loop, without process start and final evaluation.
        returns: returns of the final evaluation's episodes, with the most likely actions.
        threads: torch threads of the training process; None for several processes.
        versions: versions of the installed packages.
    """

    task: str
    contestant: str
    seed: int
    date: str
    jobs: int
    cores: int
    samples: int
    training_seconds: float
    returns: Sequence[float]
    threads: int | None
    versions: Mapping[str, str]
    curve: Curve

    @property
    def final_return(self) -> float:
        """Mean return of the final evaluation."""
        return sum(self.returns) / len(self.returns)


@dataclass(frozen=True)
class Failure:
    """A run without a result, and the last lines of its log."""

    task: str
    contestant: str
    seed: int
    date: str
    error: str


def load(task: str, folder: Path = FOLDER) -> list[Run | Failure]:
    """Return the records of a task, oldest first; empty if there is no file yet."""
    path = folder / f"{task}.jsonl"
    return [_parsed(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def append(record: Run | Failure, folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{record.task}.jsonl").open("a") as file:
        file.write(json.dumps(dataclasses.asdict(record), separators=(",", ":")) + "\n")


def finished(records: Iterable[Run | Failure]) -> dict[Key, Run]:
    """Return the run of each key that counts: the last of those with the fewest concurrent programs."""
    best: dict[Key, Run] = {}
    for run in records:
        if isinstance(run, Run):
            key = Key(run.task, run.contestant, run.seed)
            if key not in best or run.jobs <= best[key].jobs:
                best[key] = run
    return best


def missing(wanted: Iterable[Key], records: Iterable[Run | Failure], *, alone: bool = False) -> list[Key]:
    """Return the keys without a finished run, in order.

    Args:
        alone: True if runs beside other programs count as missing, too.
    """
    have = {key for key, run in finished(records).items() if run.jobs == 1 or not alone}
    return [key for key in wanted if key not in have]


def _parsed(record: dict[str, Any]) -> Run | Failure:
    if "error" in record:
        return Failure(**record)
    return Run(**{**record, "curve": Curve(**record["curve"])})
