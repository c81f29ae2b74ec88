"""What a run reports: TensorBoard files, and one line for each training step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

PHASES = ("sync_model", "generate", "compute_advantages", "run_training")
"""Seconds of the busiest rank.  With a staleness of 1 ``run_training`` goes on at the same time as the others."""


class Progress:
    """Writes to ``log_path/tensorboard`` and to stdout while it is open."""

    def __init__(self, log_path: Path, last_step: int) -> None:
        self._log_path = log_path
        self._last_step = last_step

    def __enter__(self) -> Self:
        # Imported here: it takes seconds, which the start of the workers can use.
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._log_path / "tensorboard"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._writer.close()

    def log_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line, and all of ``metrics``: among them ``train/…``, and ``time/<phase>`` in seconds."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        phases = "  ".join(f"{phase} {metrics[f'time/{phase}']:.3f}" for phase in PHASES)
        print(
            f"step {step:>{len(str(self._last_step))}}/{self._last_step} | reward {metrics['train/reward']:.3f} "
            f"| length {metrics['train/response_length']:.1f} | staleness {metrics['train/staleness']:.0f} "
            f"| kl {metrics['train/kl_to_sampler']:z.4f} "
            f"| step {metrics['time/step']:.3f} s: {phases}",
            flush=True,
        )

    def log_accuracy(self, step: int, accuracy: float, problems: int) -> None:
        self._writer.add_scalar("eval/accuracy", accuracy, step)
        print(f"step {step}: {accuracy:.1%} of {problems} held-out problems are right", flush=True)
