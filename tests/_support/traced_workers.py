"""Workers that do a little of everything, for the tests of traces."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

from rlinf_async import Channel, Tracer, Worker, WorkerAddress
from rlinf_async._recorder import recording


class Busy(Worker):
    async def ping(self) -> int:
        return self._rank

    def block(self) -> int:
        return self._rank

    def fail(self) -> float:
        return 1 / 0

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def pid(self) -> int:
        return os.getpid()

    async def count(self, number: int) -> AsyncIterator[int]:
        for each in range(number):
            yield each

    def exchange(self) -> None:
        other = 1 - self._rank
        if self._rank == 0:
            self.send("there", "busy", other)
            self.recv("busy", other)
        else:
            self.recv("busy", other)
            self.send("back", "busy", other)

    async def exchange_in_coroutines(self) -> None:
        other = 1 - self._rank
        if self._rank == 0:
            await self.send("there", "busy", other)
            await self.recv("busy", other)
        else:
            await self.recv("busy", other)
            await self.send("back", "busy", other)

    async def broadcasts(self) -> Any:
        return await self.broadcast("all" if self._rank == 0 else None, [("busy", [0, 1])], ("busy", 0))

    def put_and_get(self, channel: Channel) -> None:
        channel.put(self._rank)
        channel.get()

    async def get_one(self, channel: Channel) -> Any:
        return await channel.get()

    @Worker.timer("timed")
    async def timed(self) -> None:
        with self.worker_timer("inner"), Tracer.trace_span("mine", args={"step": 3}):
            await self._func()
        with self.worker_timer("hidden", trace=False):
            pass

    @Tracer.trace_func(name="func")
    async def _func(self) -> None:
        pass

    async def overlap(self, number: int) -> None:
        with self.worker_timer("outer"):
            for _ in range(4 - number):
                await asyncio.sleep(0.005)
            with self.worker_timer("inner"):
                await asyncio.sleep(0.005)

    async def overlapping_messages(self, number: int) -> None:
        works = [self.recv("busy", 0) for _ in range(number)]
        works += [self.send(each, "busy", 0) for each in range(number)]
        with self.worker_timer("meanwhile"):
            await works[0]
        for work in works[1:]:
            await work

    def steps(self, number: int) -> None:
        for _ in range(number):
            with Tracer.trace_span("step"):
                pass

    def kill_itself(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def is_traced(self) -> bool:
        return recording.log is not None

    def breed(self) -> int | None:
        """Starts a subprocess that is a worker too and sends something; its exit code."""
        process = multiprocessing.get_context("fork").Process(target=be_sub, args=(self.worker_address,))
        process.start()
        assert self.recv("busy", [0, 0]) == "hello"
        process.join()
        return process.exitcode


def be_sub(parent: WorkerAddress) -> None:
    worker = Worker(parent_address=parent, world_size=1, rank=0)
    with Tracer.trace_span("sub"):
        worker.send("hello", "busy", 0)
