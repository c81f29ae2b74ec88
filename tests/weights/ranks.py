"""Beginning and end of scripts of several ranks: a divided model, and its processes."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(7, 9), nn.BatchNorm1d(9), nn.Linear(9, 3))


def sharded_model() -> nn.Module:
    """The same, divided among all ranks."""
    found = model()
    for layer in (found[0], found[2], found):
        fully_shard(layer, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return found


def run(main: Callable[[int], None], size: int) -> None:
    """Runs ``main(rank)`` in so many processes, whose store is the file that the command line names, and exits."""

    def begin(rank: int) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], size), rank=rank, world_size=size)
        main(rank)
        dist.destroy_process_group()

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=begin, args=(rank,)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))
