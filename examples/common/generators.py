"""Torch generators seeded by any number of integers of any size."""

from __future__ import annotations

import numpy as np
import torch


def torch_seed(*parts: int) -> int:
    """Return a seed from 0 to 2**63 - 1 that depends only on the non-negative ``parts``, however large they are."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)


def torch_generator(*parts: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return one generator per row of ``parts``."""
    return torch.Generator(device).manual_seed(torch_seed(*parts))
