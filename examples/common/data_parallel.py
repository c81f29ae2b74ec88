"""Collectives of a data-parallel group, by torch.distributed.

Each function is a collective: every rank of the group calls it, in the same order.  A group of one rank
needs no process group.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn


class DataParallel:
    """A group of ranks that train one model; each has a copy of it and a share of the data.

    Gloo carries CPU tensors, NCCL CUDA tensors. NCCL needs a GPU per rank, so if ranks share one, their tensors go
    through the CPU.
    """

    def __init__(self, world_size: int, device: torch.device) -> None:
        self.rank, self.world_size = 0, world_size
        self._carrier = torch.device("cpu")
        if world_size == 1:
            return
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        self.rank = dist.get_rank()
        if device.type == "cuda":
            names: list[str | None] = [None] * world_size
            dist.all_gather_object(names, str(torch.cuda.get_device_properties(device).uuid))
            if len(set(names)) == world_size:
                self._carrier = device

    def share_weights(self, module: nn.Module) -> None:
        """Copy rank 0's parameters and buffers to every rank."""
        if self.world_size == 1:
            return
        for tensor in [*module.parameters(), *module.buffers()]:
            carried = tensor.detach().to(self._carrier)
            dist.broadcast(carried, src=0)
            tensor.data.copy_(carried)

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its mean over the ranks, in a single reduction."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if self.world_size == 1 or not gradients:
            return
        mean = self.mean(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, part in zip(gradients, mean.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` over the ranks."""
        if self.world_size == 1:
            return values
        carried = values.detach().to(self._carrier, copy=True)
        dist.all_reduce(carried)
        return carried.to(values.device)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of ``values`` over the ranks."""
        return self.sum(values) / self.world_size

    def moments(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the count, mean and biased variance of all ranks' ``[count, ...]`` together, in float64."""
        values = values.double()
        count = torch.tensor([float(len(values))], dtype=torch.float64, device=values.device)
        total = self.sum(torch.cat([count, values.sum(0).flatten()]))
        mean = (total[1:] / total[0]).view(values.shape[1:])
        spread = self.sum((values - mean).square().sum(0))
        return total[0], mean, spread / total[0]
