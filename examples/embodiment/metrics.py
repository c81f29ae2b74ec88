"""Progress line of a training step, and sums of the seconds of its phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.metric_logger import MetricLogger

PHASES = {
    "sync_model": "sync",
    "generate_rollouts": "rollout",
    "compute_advantages_and_returns": "advantages",
    "run_training": "train",
    "carry": "carry",
}
"""Consecutive phases of a training step and their names in the progress line; ``carry`` is the rest."""

OVERLAPPED = ("interact", "generate")
"""Concurrent activities of workers during ``generate_rollouts``, in seconds of the busiest rank."""


class EmbodiedLogger(MetricLogger):
    def log_step(self, step: int, samples: int, metrics: Mapping[str, float]) -> None:
        """Print one line and log all of ``metrics`` by samples, such as ``rollout/return`` and ``time/<phase>``."""
        self.log(metrics, samples)
        phases = "  ".join(f"{label} {metrics[f'time/{tag}']:.2f}" for tag, label in PHASES.items())
        seconds = {tag: metrics[f"time/{tag}"] for tag in OVERLAPPED}
        busy = "  ".join(f"{tag} {duration:.2f}" for tag, duration in seconds.items() if duration)
        episode_return = metrics.get("rollout/return")
        shown = "   none" if episode_return is None else f"{episode_return:7.1f}"
        self.print_step(
            step,
            f"samples {samples:>9,}",
            f"return {shown}",
            f"{metrics['rollout/steps_per_second']:6,.0f} steps/s",
            f"staleness {metrics['rollout/staleness']:.2f}",
            f"seconds: {phases}",
            f"of the rollout: {busy}",
        )


def phase_seconds(durations: Sequence[Mapping[str, float]], step_seconds: float) -> dict[str, float]:
    """Return the timers of one step as ``time/<tag>``, with the time outside all phases as ``time/carry``."""
    seconds = {tag: sum(timers.get(tag, 0.0) for timers in durations) for tag in (*PHASES, *OVERLAPPED)}
    seconds["carry"] = max(0.0, step_seconds - sum(seconds[tag] for tag in PHASES))
    return {f"time/{tag}": value for tag, value in seconds.items()} | {"time/step": step_seconds}
