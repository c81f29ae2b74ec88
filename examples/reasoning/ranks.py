"""What the ranks of the actor say to each other through torch.distributed.

Each method is a collective: every rank calls it, in the same order.  A single rank needs no process group.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Ranks:
    """Ranks that train one model, each with a copy of it and a share of the data."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        if world_size > 1:
            dist.init_process_group()

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the ranks of ``values``, of any shape."""
        if self.world_size > 1:
            values = values.clone()
            dist.all_reduce(values)
            values /= self.world_size
        return values

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replaces every gradient by its mean over the ranks: one reduction, of all of them in a row."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if self.world_size == 1:
            return
        mean = self.mean(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, part in zip(gradients, mean.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
