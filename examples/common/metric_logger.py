"""Metrics of a run: TensorBoard files, Weights & Biases where asked for, and one line for each training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rlinf_async.errors import ConfigError


class MetricLogger:
    """Writer of metrics to ``log_path/tensorboard`` and to stdout; a context manager.

    Args:
        wandb: arguments of ``wandb.init``, such as ``project`` and ``mode``, to log to Weights & Biases, too.
    """

    def __init__(self, log_path: Path, last_step: int, wandb: Mapping[str, Any] | None = None) -> None:
        self._log_path = log_path
        self._last_step = last_step
        self._wandb = wandb

    def __enter__(self) -> Self:
        # Deferred imports: they take seconds, during which workers can already start.
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._log_path / "tensorboard"))
        self._run: Any = None
        if self._wandb is not None:
            try:
                import wandb
            except ImportError as error:
                raise ConfigError("runner.logger.wandb needs wandb: pip install wandb, or write null") from error
            self._run = wandb.init(dir=str(self._log_path), name=self._log_path.name, **self._wandb)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._writer.close()
        if self._run is not None:
            self._run.finish(exit_code=int(exc_info[0] is not None))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        if self._run is not None:
            self._run.log(dict(metrics), step=step)

    def print_step(self, step: int, *words: str) -> None:
        print(" | ".join([f"step {step:>{len(str(self._last_step))}}/{self._last_step}", *words]), flush=True)


def mean_over_ranks(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(result[name] for result in results) / len(results) for name in results[0]}
