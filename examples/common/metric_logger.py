"""Metrics of a run: TensorBoard files, and one line for each training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self


class MetricLogger:
    """Writer of metrics to ``log_path/tensorboard`` and to stdout; a context manager."""

    def __init__(self, log_path: Path, last_step: int) -> None:
        self._log_path = log_path
        self._last_step = last_step

    def __enter__(self) -> Self:
        # A deferred import: it takes seconds, during which workers can already start.
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._log_path / "tensorboard"))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._writer.close()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def print_step(self, step: int, *words: str) -> None:
        print(" | ".join([f"step {step:>{len(str(self._last_step))}}/{self._last_step}", *words]), flush=True)


def mean_over_ranks(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(result[name] for result in results) / len(results) for name in results[0]}
