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
        samples: transitions so far, ascending.
        seconds: seconds since the start of the training loop, ascending.
        returns: undiscounted, unscaled returns.
    """

    samples: Sequence[int]
    seconds: Sequence[float]
    returns: Sequence[float]

    def at_seconds(self, seconds: float) -> float | None:
        """Interpolate linearly at a time; return None before the first point, and the last value after the end."""
        if not self.seconds or seconds < self.seconds[0]:
            return None
        return float(np.interp(seconds, self.seconds, self.returns))


def read_events(folder: Path) -> Any:
    """Yield TensorBoard's event files, with every value of every scalar."""
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={SCALARS: 0})
    events.Reload()
    return events


def read_curve(folder: Path, tag: str, samples: int) -> Curve:
    """Return the curve of scalar ``tag`` in the event files of ``folder``.

    Args:
        samples: samples of the whole run, at its last event; events may count samples or training steps. Seconds count
            from the first record of the file, which its writer makes as training begins.

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
