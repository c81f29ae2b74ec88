"""Checkpoints of a run: folders with a model in the format of Hugging Face, beside it what training goes on from."""

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
_COUNTERS = "run.json"
_LATEST = "latest"


@dataclass(frozen=True)
class Counters:
    """Where a run is.

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
def new_checkpoint(log_path: Path, counters: Counters) -> Iterator[Path]:
    """Give a folder to write a checkpoint into; at the end of the block it becomes ``checkpoints/step_…``, the latest.

    The folder and the link to it get their names when they are complete, so a killed run leaves the checkpoint before
    or this one.
    """
    folder = log_path / "checkpoints"
    path, draft = folder / f"step_{counters.step:06d}", folder / f".draft.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    yield draft
    (draft / _COUNTERS).write_text(json.dumps(asdict(counters), indent=2) + "\n")
    if path.exists():  # of a run that went on from an earlier checkpoint
        shutil.rmtree(path)
    draft.rename(path)
    link = folder / f".link.{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(path.name)
    link.replace(folder / _LATEST)


def checkpoint_to_resume(cfg: Configuration) -> Path | None:
    """Return the checkpoint that ``runner.resume_dir`` names: a log path, or a checkpoint; ``auto`` is this log path.

    Raises:
        ConfigError: there is none, unless the key is ``auto``.
    """
    named = cfg.runner.resume_dir
    if named is None:
        return None
    place = Path(cfg.runner.logger.log_path if named == "auto" else named).absolute()
    for folder in (place, place / _LATEST, place / "checkpoints" / _LATEST):
        if (folder / _COUNTERS).is_file():
            return folder.resolve()
    if named == "auto":
        return None
    raise ConfigError(f"runner.resume_dir: no checkpoint in {place}: name a log path or a folder checkpoints/step_…")


def read_counters(checkpoint: Path, cfg: Configuration) -> Counters:
    """Read the counters of a checkpoint.

    Raises:
        ConfigError: it was saved with other data.
    """
    counters = Counters(**json.loads((checkpoint / _COUNTERS).read_text()))
    saved, own = OmegaConf.create(counters.config), OmegaConf.structured(cfg)
    for key in ("data.task", "data.train_path"):
        before, now = OmegaConf.select(saved, key), OmegaConf.select(own, key)
        if before != now:
            before, now = ("null" if value is None else value for value in (before, now))
            raise ConfigError(
                f"{checkpoint} was saved with {key}={before}, and this run has {now}: write {key}={before}, or begin "
                "without this checkpoint"
            )
    return counters
