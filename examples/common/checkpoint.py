"""Atomic checkpoints, one file per step: saving and loading."""

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
    """Write ``folder/step_<step>.pt``, and make ``folder/latest.pt`` the same file.

    Each name appears by a rename of a complete, synced file, so readers and resumed runs find either the old checkpoint
    or the new one, even after a crash in the middle.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step:06d}.pt"
    temporary = folder / f".{path.name}.{os.getpid()}"
    # A killed run with this pid may have left the name, as a second one of a checkpoint, which must not be truncated.
    temporary.unlink(missing_ok=True)
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
    """Return the place that ``runner.resume_dir`` names; ``auto`` is the run's log path if that has a checkpoint."""
    if resume_dir == "auto":
        return log_path if any(path.is_file() for path in _candidates(log_path)) else None
    return resume_dir


def _candidates(place: Path) -> list[Path]:
    return [place / _LATEST, place / "checkpoints" / _LATEST]


def load_checkpoint(place: str | Path, cfg: Any = None, same: Sequence[str] = ()) -> dict[str, Any]:
    """Read one checkpoint: a file, or the latest of a folder or of a run's log path.

    Nothing in the file can run code: the loader accepts only tensors and plain containers.

    Args:
        cfg: configuration of this run; the checkpoint has the configuration of the run that saved it, as ``config``.
        same: keys on which the two must agree, such as ``actor.model.hidden_sizes``.

    Raises:
        ConfigError: there is no checkpoint, or a key differs; the message has file, key and both values.
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
    """Load only the policy's weights, for ``model_path``; otherwise like ``load_checkpoint``."""
    weights: dict[str, Any] = load_checkpoint(place, cfg, same)["policy"]
    return weights


def _check_same(path: Path, saved: Any, cfg: Any, keys: Sequence[str]) -> None:
    own = None if cfg is None else OmegaConf.structured(cfg)
    for key in keys:
        before, now = OmegaConf.select(saved, key), OmegaConf.select(own, key)
        if before is not None and before != now:
            override = f"{key}={before}".replace(", ", ",")
            raise ConfigError(
                f"{path} was saved with {override}, and this run has {now}: write {override}, or begin without this "
                "checkpoint"
            )
