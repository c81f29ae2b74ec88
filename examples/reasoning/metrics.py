"""``MetricLog``: figures of a run, for TensorBoard and, where asked for, Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from omegaconf import OmegaConf
from reasoning_config import Configuration

from rlinf_async.errors import ConfigError


class MetricLog:
    """Writer of figures to ``log_path/tensorboard`` and to Weights & Biases; a context manager."""

    def __init__(self, cfg: Configuration) -> None:
        self._cfg = cfg
        self._folder = Path(cfg.runner.logger.log_path)

    def __enter__(self) -> Self:
        # Deferred imports: they take seconds, during which workers can already start.
        from torch.utils.tensorboard import SummaryWriter

        self._tensorboard = SummaryWriter(str(self._folder / "tensorboard"))
        self._wandb = self._start_wandb() if self._cfg.runner.logger.wandb else None
        return self

    def _start_wandb(self) -> Any:
        logger = self._cfg.runner.logger
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(
                f"runner.logger.wandb={logger.wandb} needs wandb, which is not installed: pip install wandb, or write "
                "runner.logger.wandb=null"
            ) from error
        config = OmegaConf.to_container(OmegaConf.structured(self._cfg))
        return wandb.init(
            project=logger.project,
            name=self._folder.name,
            dir=str(self._folder),
            mode=logger.wandb,
            config=config,
        )

    def __exit__(self, *exc_info: object) -> None:
        self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=int(exc_info[0] is not None))

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._tensorboard.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(dict(figures), step=step)
