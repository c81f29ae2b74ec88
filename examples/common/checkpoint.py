"""Saves and loads checkpoints, one file per step, written atomically."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from rlinf_async.errors import ConfigError

_LATEST = "latest.pt"


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Writes ``folder/step_<step>.pt`` and makes ``folder/latest.pt`` the same file.

    Each name appears by a rename of a complete, synced file: a reader, and whoever resumes after a crash in
    the middle, finds the old checkpoint or the new one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step:06d}.pt"
    temporary = folder / f".{path.name}.{os.getpid()}"
    try:
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        temporary.hardlink_to(path)
        temporary.replace(folder / _LATEST)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def place_to_resume(resume_dir: str | None, log_path: Path) -> str | Path | None:
    """The place that ``runner.resume_dir`` means; ``auto`` is the run's own log path, if that has a checkpoint."""
    if resume_dir == "auto":
        return log_path if any(path.is_file() for path in _candidates(log_path)) else None
    return resume_dir


def _candidates(place: Path) -> list[Path]:
    return [place / _LATEST, place / "checkpoints" / _LATEST]


def load_checkpoint(place: str | Path, cfg: Any = None, same: Sequence[str] = ()) -> dict[str, Any]:
    """Reads one checkpoint: a file, or the latest of a folder (of a run's log path as well).

    Nothing in the file can run code: only tensors and plain containers are read.

    Args:
        cfg: the configuration of this run, where it must agree with that of the run that saved the checkpoint, which
            lies in it as ``config``.
        same: the keys that they must agree on, ``actor.model.hidden_sizes`` for example.

    Raises:
        ConfigError: when there is none, or they do not agree; names file, key and both values.
    """
    place = Path(place)
    candidates = _candidates(place) if place.is_dir() else [place]
    for path in candidates:
        if path.is_file():
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            _check_same(path, OmegaConf.create(state.get("config", {})), cfg, same)
            return state
    raise ConfigError(f"no checkpoint at {place}: looked for {' and '.join(map(str, candidates))}")


def load_policy(place: str | Path, cfg: Any = None, same: Sequence[str] = ()) -> dict[str, Any]:
    """The policy's weights alone, for ``model_path``; otherwise as ``load_checkpoint``."""
    weights: dict[str, Any] = load_checkpoint(place, cfg, same)["policy"]
    return weights


def _check_same(path: Path, saved: Any, cfg: Any, keys: Sequence[str]) -> None:
    here = None if cfg is None else OmegaConf.structured(cfg)
    for key in keys:
        before, now = OmegaConf.select(saved, key), OmegaConf.select(here, key)
        if before is not None and before != now:
            override = f"{key}={before}".replace(", ", ",")
            raise ConfigError(
                f"{path} was saved with {override}, and this run has {now}: write {override}, or begin without this "
                "checkpoint"
            )
