"""Progress lines: of a training step, and of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping

from common.metric_logger import MetricLogger

PHASES = ("sync_model", "generate", "compute_advantages", "run_training")
"""Seconds of the busiest rank.  With a staleness of 1 ``run_training`` goes on at the same time as the others."""


class Progress(MetricLogger):
    def log_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line, and all of ``metrics``: among them ``train/…``, and ``time/<phase>`` in seconds."""
        self.log(metrics, step)
        phases = "  ".join(f"{phase} {metrics[f'time/{phase}']:.3f}" for phase in PHASES)
        self.print_step(
            step,
            f"reward {metrics['train/reward']:.3f}",
            f"length {metrics['train/response_length']:.1f}",
            f"entropy {metrics['train/entropy']:.3f}",
            f"no signal {metrics['train/groups_without_signal']:.0%}",
            f"staleness {metrics['train/staleness']:.0f}",
            f"kl {metrics['train/kl_to_sampler']:z.4f}",
            f"step {metrics['time/step']:.3f} s: {phases}",
        )

    def log_evaluation(self, step: int, result: Mapping[str, float], problems: int) -> None:
        self.log({f"eval/{name}": value for name, value in result.items()}, step)
        told = ", ".join(f"{name} {value:.1%}" for name, value in result.items())
        print(f"step {step}: {told} on {problems} held-out problems", flush=True)
