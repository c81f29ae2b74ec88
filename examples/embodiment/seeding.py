"""Seeds by purpose (training, selection, evaluation): disjoint, and the same in a resumed run.

Simulators' seeds for training, for the choice of when to stop, and for the final evaluation come from ranges
that cannot meet.  What is drawn at a training step depends only on (seed, purpose, rank, step): a resumed run
needs no generator's state from the checkpoint.
"""

from __future__ import annotations

import numpy as np
import torch

_RANGE = 2**29
_SELECTION, _FINAL = 1, 2


def training_seeds(seed: int, step: int, count: int) -> list[int]:
    """Return seeds below 2**29 for ``count`` simulators of a run that starts at ``step``."""
    return [int(word) % _RANGE for word in np.random.SeedSequence([seed, step]).generate_state(count)]


def selection_seeds(count: int) -> list[int]:
    """Return the seeds of evaluations during training, which decide when it ends; equal in every run."""
    return [_SELECTION * _RANGE + index for index in range(count)]


def evaluation_seeds(count: int) -> list[int]:
    """Return the seeds of the final evaluation, which nothing before it uses; equal in every run."""
    return [_FINAL * _RANGE + index for index in range(count)]


def generator_for(seed: int, purpose: str, rank: int, step: int, device: torch.device) -> torch.Generator:
    """Return a separate generator for each purpose, rank and training step."""
    words = np.random.SeedSequence([seed, *purpose.encode(), rank, step]).generate_state(2, np.uint32)
    return torch.Generator(device).manual_seed(int(words[0]) << 31 | int(words[1]) >> 1)
