"""pass@k: the chance that one of k responses to a problem is right."""

from __future__ import annotations

import math
from collections.abc import Sequence


def pass_at_k(right: int, samples: int, k: int) -> float:
    """The unbiased estimate from ``right`` right ones of ``samples`` responses: Chen et al., arXiv 2107.03374, eq. 1.

    Raises:
        ValueError: k is larger than the number of samples.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {samples} samples: k must be from 1 to their number")
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def mean_pass_at_k(right: Sequence[int], samples: int, k: int) -> float:
    """The mean over problems, of each of which ``samples`` responses were judged."""
    return sum(pass_at_k(count, samples, k) for count in right) / len(right)
