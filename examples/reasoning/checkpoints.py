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
    """Where a run is; random numbers depend on the seed and on these alone."""

    step: int  # training steps that are done
    position: int  # number of the next problem
    reference: str  # folder of the model that training began with
    before: dict[str, float]  # the evaluation before training
    config: str  # YAML


@contextmanager
def new_checkpoint(log_path: Path, progress: Progress) -> Iterator[Path]:
    """Give a folder to write a checkpoint into, which becomes ``checkpoints/step_…`` and the latest when complete.

    A run that is killed meanwhile leaves the checkpoint before.
    """
    folder = log_path / "checkpoints"
    path, link = folder / f"step_{progress.step:06d}", folder / f".link.{os.getpid()}"
    draft, old = folder / ".draft", folder / ".old"
    shutil.rmtree(draft, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    draft.mkdir(parents=True)
    yield draft
    (draft / _PROGRESS).write_text(json.dumps(asdict(progress), indent=2) + "\n")
    if path.exists():  # of a run that went on from an earlier checkpoint; to remove the latest one here would take long
        path.rename(old)
    draft.rename(path)
    link.unlink(missing_ok=True)  # of a killed run with this pid
    link.symlink_to(path.name)
    link.replace(folder / _LATEST)
    shutil.rmtree(old, ignore_errors=True)


def checkpoint_to_resume(cfg: Configuration, named: str | None) -> Path | None:
    """Return the checkpoint of a log path, or at a path; ``auto`` is the run's own log path, which may have none."""
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
    """Read where the run was; ConfigError if it had other data."""
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
