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
    """The run of a contestant on a task with a seed."""

    task: str
    contestant: str
    seed: int


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        date: of its end, ISO 8601.
        jobs: programs that computed on the machine at the time, this one among them; times count where it is 1.
        cores: of the machine.
        training_seconds: of the training loop, without the start of processes and the final evaluation.
        returns: of the final evaluation's episodes, with the most likely actions.
        threads: torch's in the training process; None where there are several processes.
        versions: of the packages that it ran on.
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
        """Mean of the final evaluation's episodes."""
        return sum(self.returns) / len(self.returns)


@dataclass(frozen=True)
class Failure:
    """A run that came to no result, and the last words of its log."""

    task: str
    contestant: str
    seed: int
    date: str
    error: str


def load(task: str, folder: Path = FOLDER) -> list[Run | Failure]:
    """Records of a task, oldest first; none where there is no file yet."""
    path = folder / f"{task}.jsonl"
    return [_parsed(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def append(record: Run | Failure, folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{record.task}.jsonl").open("a") as file:
        file.write(json.dumps(dataclasses.asdict(record), separators=(",", ":")) + "\n")


def finished(records: Iterable[Run | Failure]) -> dict[Key, Run]:
    """The run of each key that counts: the last of those with the fewest programs beside them."""
    best: dict[Key, Run] = {}
    for run in records:
        if isinstance(run, Run):
            key = Key(run.task, run.contestant, run.seed)
            if key not in best or run.jobs <= best[key].jobs:
                best[key] = run
    return best


def missing(wanted: Iterable[Key], records: Iterable[Run | Failure], *, alone: bool = False) -> list[Key]:
    """Keys without a finished run, in their order.

    Args:
        alone: runs beside which another one computed are missing too.
    """
    have = {key for key, run in finished(records).items() if run.jobs == 1 or not alone}
    return [key for key in wanted if key not in have]


def _parsed(record: dict[str, Any]) -> Run | Failure:
    if "error" in record:
        return Failure(**record)
    return Run(**{**record, "curve": Curve(**record["curve"])})
