"""Plot of a task's learning curves, by samples and by seconds: one SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .curves import Curve
from .records import Run
from .table import alone
from .trainers import TRAINERS

POINTS: Final = 60
"""Points of a curve; as many as a page's width can show."""

COLOURS: Final = dict(
    zip(
        (trainer.label for trainer in TRAINERS.values()),
        ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#555555"),
        strict=True,
    )
)
"""Colour by label: the palette of Okabe and Ito, which colour-blind readers can tell apart."""

Floats = NDArray[np.float64]
Axis = Callable[[Curve], Sequence[float]]


def save_plot(path: Path, task: str, groups: Mapping[str, Sequence[Run]]) -> None:
    """Draw each contestant's median over its seeds, and the range between its worst and best seed.

    Args:
        groups: runs by label; the panel by seconds leaves out runs that shared the machine.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: dict[str, Any] = {"svg.hashsalt": task, "svg.fonttype": "none", "font.size": 9, "font.family": "sans-serif"}
    with rc_context(style):
        figure = Figure(figsize=(8.4, 3.1), layout="constrained", facecolor="white")
        by_samples, by_seconds = figure.subplots(1, 2, sharey=True)
        for label, runs in groups.items():
            _draw(by_samples, runs, lambda curve: [count / 1000 for count in curve.samples], label)
            _draw(by_seconds, alone(runs), lambda curve: curve.seconds, label)
        by_samples.set(title=task, xlabel="thousand samples", ylabel="training return")
        by_seconds.set(xlabel="seconds")
        if not by_seconds.lines:
            by_seconds.text(0.5, 0.5, "no run was alone on the machine", ha="center", transform=by_seconds.transAxes)
        for axes in (by_samples, by_seconds):
            axes.grid(color="#dddddd", linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        by_samples.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None})


def band(curves: Sequence[Curve], axis: Axis) -> tuple[Floats, Floats, Floats, Floats]:
    """Return ``[POINTS]`` positions where all curves have values, with their minimum, median and maximum."""
    places = np.linspace(max(axis(curve)[0] for curve in curves), min(axis(curve)[-1] for curve in curves), POINTS)
    values = np.array([np.interp(places, axis(curve), curve.returns) for curve in curves])
    return places, values.min(0), np.median(values, 0), values.max(0)


def _draw(axes: Any, runs: Sequence[Run], axis: Axis, label: str) -> None:
    if not runs:
        return
    places, low, middle, high = band([run.curve for run in runs], axis)
    axes.fill_between(places, low, high, color=COLOURS[label], alpha=0.15, linewidth=0)
    axes.plot(places, middle, color=COLOURS[label], linewidth=1.5, label=label)
