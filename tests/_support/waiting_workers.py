"""Workers that wait, by each method in another way, until they are let go."""

from __future__ import annotations

import asyncio
from typing import Any

import torch
import torch.distributed as dist

from rlinf_async import Worker, WorkerGroup


class Waiting(Worker):
    """``open`` lets go of its coroutines; what blocks goes on with a message of rank 0 of group ``waiting``."""

    def __init__(self) -> None:
        super().__init__()
        self.event = asyncio.Event()

    def here(self) -> int:
        return self._rank

    async def open(self) -> None:
        self.event.set()

    async def let_go(self, name: str, rank: int) -> None:
        await self.send("go on", name, rank)

    # -- coroutines ---------------------------------------------------------------------------------------------

    async def wait(self) -> None:
        await self.event.wait()

    async def call(self, name: str, rank: int) -> None:
        group: Any = await WorkerGroup.from_group_name(Waiting, name)
        await group.execute_on(rank).wait()

    async def receive(self, name: str, rank: int) -> Any:
        return await self.recv(name, rank)

    async def receive_soon(self, name: str, rank: int) -> Any:
        async with asyncio.timeout(60):
            return await self.recv(name, rank)

    # -- what blocks ----------------------------------------------------------------------------------------------

    def _word(self) -> Any:
        return self.recv("waiting", 0, async_op=True)

    def reduce(self, late: int) -> float:
        """Of all ranks; one comes later than the others."""
        dist.init_process_group("gloo")
        if self._rank == late:
            self._word().wait()
        ones = torch.ones(1)
        dist.all_reduce(ones)
        dist.destroy_process_group()
        return float(ones)
