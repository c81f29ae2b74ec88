"""Checkpoints: folders with a model in the format of Hugging Face, its optimiser's state, and where the run was."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from omegaconf import OmegaConf
from reasoning_config import Configuration

from rlinf_async.errors import ConfigError

OPTIMIZER = "optimizer.pt"
_PROGRESS, _LATEST = "run.json", "latest"


@dataclass(frozen=True)
class Progress:
    """Where a run is; random numbers depend on the seed and on these alone.

    Attributes:
        step: training steps that are done.
        position: number of the next problem.
        reference: folder of the model that training began with.
        before: the evaluation before training.
        config: the configuration, as YAML.
    """

    step: int
    position: int
    reference: str
    before: dict[str, float]
    config: str


@contextmanager
def new_checkpoint(log_path: Path, progress: Progress) -> Iterator[Path]:
    """Give a folder to write a checkpoint into; at the end of the block it becomes ``checkpoints/step_…``, the latest.

    The folder and the link to it get their names when they are complete: a killed run leaves the checkpoint before, or
    this one.
    """
    folder = log_path / "checkpoints"
    path, draft, link = folder / f"step_{progress.step:06d}", folder / ".draft", folder / f".link.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    yield draft
    (draft / _PROGRESS).write_text(json.dumps(asdict(progress), indent=2) + "\n")
    shutil.rmtree(path, ignore_errors=True)  # of a run that went on from an earlier checkpoint
    draft.rename(path)
    link.symlink_to(path.name)
    link.replace(folder / _LATEST)


def checkpoint_to_resume(cfg: Configuration, named: str | None) -> Path | None:
    """Return the checkpoint of a log path, or at a path; ``auto`` is the run's own log path, if that has one.

    Raises:
        ConfigError: there is none.
    """
    if named is None:
        return None
    place = Path(cfg.runner.logger.log_path if named == "auto" else named).absolute()
    for folder in (place, place / _LATEST, place / "checkpoints" / _LATEST):
        if (folder / _PROGRESS).is_file():
            return folder.resolve()
    if named == "auto":
        return None
    raise ConfigError(f"runner.resume_dir: no checkpoint in {place}: name a log path or a folder checkpoints/step_…")


def read_progress(checkpoint: Path, cfg: Configuration) -> Progress:
    """Read where the run was.

    Raises:
        ConfigError: it had other data.
    """
    progress = Progress(**json.loads((checkpoint / _PROGRESS).read_text()))
    saved, own = OmegaConf.create(progress.config), OmegaConf.structured(cfg)
    for key in ("data.task", "data.train_path"):
        before, now = (OmegaConf.select(each, key) or "null" for each in (saved, own))
        if before != now:
            raise ConfigError(
                f"{checkpoint} was saved with {key}={before}, and this run has {now}: write {key}={before}, or begin "
                "without this checkpoint"
            )
    return progress
