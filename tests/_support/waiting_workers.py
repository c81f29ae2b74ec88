"""Workers that wait, by each method in another way, until they are let go."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import torch
import torch.distributed as dist

from rlinf_async import Channel, Worker, WorkerGroup


class Waiting(Worker):
    """``open`` lets go of its coroutines; what blocks goes on with a message of rank 0 of group ``waiting``."""

    def __init__(self) -> None:
        super().__init__()
        self.event = asyncio.Event()
        self.lock = threading.Lock()

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

    async def gather(self) -> None:
        await asyncio.gather(self.wait(), asyncio.create_task(self.wait_or_sleep(), name="child"))

    async def wait_or_sleep(self) -> None:
        either = [asyncio.create_task(asyncio.sleep(60)), asyncio.create_task(self.event.wait())]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        either[0].cancel()

    async def receive(self, name: str, rank: int) -> Any:
        return await self.recv(name, rank)

    async def receive_soon(self, name: str, rank: int) -> Any:
        async with asyncio.timeout(60):
            return await self.recv(name, rank)

    async def count(self) -> AsyncIterator[int]:
        number = 0
        while not self.event.is_set():
            yield number
            number += 1

    # -- what blocks ----------------------------------------------------------------------------------------------

    def _word(self) -> Any:
        return self.recv("waiting", 0, async_op=True)

    def take(self, channel: Channel) -> Any:
        return channel.get()

    def sleep(self) -> None:
        word = self._word()
        while not word.done():
            time.sleep(0.3)

    def lock_twice(self) -> None:
        def release() -> None:
            self._word().wait()
            self.lock.release()

        self.lock.acquire()
        releasing = threading.Thread(target=release)
        releasing.start()
        with self.lock:
            releasing.join()

    def run_a_loop(self) -> None:
        async def main() -> None:
            async with asyncio.TaskGroup() as tasks:
                sleeping = tasks.create_task(asyncio.sleep(60))
                tasks.create_task(wake(sleeping))

        async def wake(sleeping: asyncio.Task[None]) -> None:
            await self._word()
            sleeping.cancel()

        asyncio.run(main())

    def reduce(self, late: int) -> float:
        """Of all ranks; one comes later than the others."""
        dist.init_process_group("gloo")
        if self._rank == late:
            self._word().wait()
        ones = torch.ones(1)
        dist.all_reduce(ones)
        dist.destroy_process_group()
        return float(ones)
