"""Plot of one run of the reasoning example, from its event files: ``python -m benches.results.run_plot LOGS SVG``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

from .curves import read_events

SMOOTHED: Final = 20
"""Training steps over which rewards are averaged."""


def save_run_plot(logs: Path, path: Path) -> None:
    """Draw the mean reward of the training steps and the accuracy on held-out problems, as an SVG.

    For a step that a resumed run has repeated, the last value counts.

    Args:
        logs: the run's ``runner.logger.log_path``.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    events = read_events(logs / "tensorboard")
    rewards, accuracy = (
        {each.step: each.value for each in events.Scalars(tag)} for tag in ("train/reward", "eval/accuracy")
    )
    style: dict[str, Any] = {"svg.hashsalt": "run", "svg.fonttype": "none", "font.size": 9, "font.family": "sans-serif"}
    with rc_context(style):
        figure = Figure(figsize=(6.0, 2.8), layout="constrained", facecolor="white")
        axes = figure.subplots()
        steps = sorted(rewards)
        means = np.convolve([rewards[step] for step in steps], np.full(SMOOTHED, 1 / SMOOTHED), "valid")
        axes.plot(
            steps[SMOOTHED - 1 :], means, color="#0072B2", linewidth=1.2, label=f"reward, mean of {SMOOTHED} steps"
        )
        places = sorted(accuracy)
        values = [accuracy[step] for step in places]
        axes.plot(places, values, "o-", color="#D55E00", markersize=3, linewidth=1.0, label="accuracy, held out")
        axes.set(xlabel="training steps", ylabel="share of right answers", ylim=(0, 1))
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    save_run_plot(Path(sys.argv[1]), Path(sys.argv[2]))
