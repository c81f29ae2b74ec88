"""Statistics over the seeds of a task, with bootstrap confidence intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]

RESAMPLES: Final = 10_000
CONFIDENCE: Final = 0.95


def mean(values: Floats) -> Floats:
    """``[..., seeds]`` → ``[...]``."""
    return values.mean(-1)


def median(values: Floats) -> Floats:
    """``[..., seeds]`` → ``[...]``."""
    return np.median(values, -1)


def interquartile_mean(values: Floats) -> Floats:
    """Return the interquartile mean, ``[..., seeds]`` → ``[...]``.

    The ``floor(n / 4)`` lowest and highest of n values are left out, as in rliable (Agarwal et al., "Deep Reinforcement
    Learning at the Edge of the Statistical Precipice", arXiv 2108.13264).
    """
    cut = values.shape[-1] // 4
    return np.sort(values, -1)[..., cut : values.shape[-1] - cut].mean(-1)


@dataclass(frozen=True)
class Estimate:
    """A statistic with its 95 % interval, or without one for a single value."""

    value: float
    low: float | None
    high: float | None


def estimate(values: Sequence[float], statistic: Statistic) -> Estimate:
    """Return a statistic of one value per seed, with its percentile-bootstrap interval (Efron, 1979).

    Seeds are drawn with replacement :data:`RESAMPLES` times, by a generator with a fixed seed.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("a statistic of no runs")
    array = np.asarray(values, dtype=np.float64)
    if len(array) == 1:
        return Estimate(float(array[0]), None, None)
    chosen = np.random.default_rng(0).integers(len(array), size=(RESAMPLES, len(array)))
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(statistic(array[chosen]), [tail, 100 - tail])
    return Estimate(float(statistic(array)), float(low), float(high))
