"""``MetricLog``: figures of a run on stdout, for TensorBoard and, where asked for, Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from omegaconf import OmegaConf
from reasoning_config import Configuration

from rlinf_async.errors import ConfigError

PHASES = ("wait_for_responses", "train", "publish")
"""Parts of a training step, in seconds.  With a staleness above 0 the engines sample in all of them."""


class MetricLog:
    """Writer of figures to ``log_path/tensorboard`` and to Weights & Biases; a context manager."""

    def __init__(self, cfg: Configuration) -> None:
        self._cfg = cfg
        self._folder = Path(cfg.runner.logger.log_path)

    def __enter__(self) -> Self:
        # A deferred import: it takes seconds, during which workers can already start.
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
        config: Any = OmegaConf.to_container(OmegaConf.structured(self._cfg))
        place = {"project": logger.project, "name": self._folder.name, "dir": str(self._folder)}
        return wandb.init(**place, mode=logger.wandb, config=config)

    def __exit__(self, *exc_info: object) -> None:
        self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=int(exc_info[0] is not None))

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._tensorboard.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(dict(figures), step=step)


def describe_step(step: int, last_step: int, figures: Mapping[str, float]) -> str:
    """Return the line of a training step."""
    words = {name.partition("/")[2]: value for name, value in figures.items() if name.startswith("train/")}
    seconds = ", ".join(f"{name} {figures[f'time/{name}']:.3f}" for name in PHASES)
    return (
        f"step {step:>{len(str(last_step))}}/{last_step} | reward {words['reward']:.3f} | "
        f"length {words['response_length']:.1f} | entropy {words['entropy']:.3f} | "
        f"no signal {words['groups_without_signal']:.0%} | staleness {words['staleness']:.1f} | "
        f"kl {words['kl_to_engine']:z.4f} | step {figures['time/step']:.3f} s: {seconds}"
    )
