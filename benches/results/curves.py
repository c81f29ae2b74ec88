"""Learning curves: training returns by samples and seconds, read from TensorBoard's event files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Curve:
    """Mean return of the last 20 training episodes, along one run.

    Attributes:
        samples: transitions so far, rising.
        seconds: since the training loop began, rising.
        returns: undiscounted and unscaled.
    """

    samples: Sequence[int]
    seconds: Sequence[float]
    returns: Sequence[float]

    def at_seconds(self, seconds: float) -> float | None:
        """Return at an instant, linear between two points; None before the first, the last after the end."""
        if not self.seconds or seconds < self.seconds[0]:
            return None
        return float(np.interp(seconds, self.seconds, self.returns))


def read_events(folder: Path) -> Any:
    """TensorBoard's event files, with every value of every scalar."""
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={SCALARS: 0})
    events.Reload()
    return events


def read_curve(folder: Path, tag: str, samples: int) -> Curve:
    """Curve of scalar ``tag`` in the event files of ``folder``.

    Args:
        samples: those of the whole run, at its last event: events may count samples or training steps.  Seconds count
            from the file's first record, which its writer makes as training begins.

    Raises:
        ValueError: there is no such scalar.
    """
    events = read_events(folder)
    tags = events.Tags()["scalars"]
    if tag not in tags:
        raise ValueError(f"{folder}: no scalar {tag} in its event files, only {tags}")
    scalars = events.Scalars(tag)
    started, scale = events.FirstEventTimestamp(), samples / scalars[-1].step
    return Curve(
        [round(event.step * scale) for event in scalars],
        [round(event.wall_time - started, 2) for event in scalars],
        [float(f"{event.value:.5g}") for event in scalars],
    )
