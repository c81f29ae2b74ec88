"""What a run reports: TensorBoard files, and one line for each training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

PHASES = {
    "sync_model": "sync",
    "generate_rollouts": "rollout",
    "compute_advantages_and_returns": "advantages",
    "run_training": "train",
    "carry": "carry",
}
"""What follows one after the other in a training step, as the progress line calls it.  ``carry`` is the rest."""

OVERLAPPED = ("interact", "generate")
"""What workers are busy with at the same time during ``generate_rollouts``: seconds of the busiest rank."""


class MetricLogger:
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

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def log_step(self, step: int, samples: int, metrics: Mapping[str, float]) -> None:
        """One line, and all of ``metrics``: among them ``rollout/return`` and ``time/<phase>`` in seconds."""
        self.log(metrics, step)
        phases = "  ".join(f"{label} {metrics[f'time/{tag}']:.2f}" for tag, label in PHASES.items())
        busy = "  ".join(f"{tag} {metrics[f'time/{tag}']:.2f}" for tag in OVERLAPPED)
        episode_return = metrics.get("rollout/return")
        shown = "   none" if episode_return is None else f"{episode_return:7.1f}"
        print(
            f"step {step:>{len(str(self._last_step))}}/{self._last_step} | samples {samples:>9,} "
            f"| return {shown} | {metrics['rollout/steps_per_second']:6,.0f} steps/s "
            f"| staleness {metrics['rollout/staleness']:.2f} | seconds: {phases} | of the rollout: {busy}",
            flush=True,
        )


def phase_seconds(durations: Sequence[Mapping[str, float]], step_seconds: float) -> dict[str, float]:
    """The timers of one step → ``time/<tag>``, with what is in no phase as ``time/carry``."""
    seconds = {tag: sum(timers.get(tag, 0.0) for timers in durations) for tag in (*PHASES, *OVERLAPPED)}
    seconds["carry"] = max(0.0, step_seconds - sum(seconds[tag] for tag in PHASES))
    return {f"time/{tag}": value for tag, value in seconds.items()} | {"time/step": step_seconds}


def mean_over_ranks(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(result[name] for result in results) / len(results) for name in results[0]}
