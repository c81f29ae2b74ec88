"""Workers with ``@concurrent`` methods beside ``def`` methods that block."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from rlinf_async import Channel, Worker, concurrent


class Overtaken(Worker):
    """Its main thread blocks until it is told to go on."""

    def __init__(self, arrivals: Channel | None = None, signals: Channel | None = None) -> None:
        super().__init__()
        self.order: list[str] = []
        self.go_on = threading.Event()
        self.cleaned = threading.Event()
        self.stopping = False
        self.steps = 0
        self.barrier: asyncio.Barrier | None = None
        if arrivals is not None and signals is not None:
            arrivals.put("constructing")
            signals.get()

    def block(self) -> str:
        assert self.go_on.wait(60)
        self.go_on.clear()
        self.order.append("block")
        return threading.current_thread().name

    def train(self) -> int:
        while not self.stopping:
            self.steps += 1
        return self.steps

    async def plain(self) -> list[str]:
        return [*self.order, "plain"]

    @concurrent
    async def release(self) -> None:
        self.go_on.set()

    @concurrent
    async def stop(self) -> int:
        self.stopping = True
        return self.steps

    @Worker.timer("health")
    @concurrent
    async def health(self) -> str:
        return threading.current_thread().name

    @staticmethod
    @concurrent
    async def alive(word: str) -> str:
        return word

    @concurrent
    async def hang(self, path: str | None = None) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)  # cleaning up takes a while
            self.cleaned.set()
            if path is not None:
                Path(path).write_text("cleaned")

    @concurrent
    async def fail(self) -> None:
        raise ValueError("no pulse")

    @concurrent
    async def exit(self) -> None:
        raise SystemExit(3)

    @concurrent
    async def leave_exit_behind(self) -> None:
        async def exit_later() -> None:
            raise SystemExit(3)

        self.left = asyncio.ensure_future(exit_later())

    @concurrent
    async def meet(self) -> int:
        self.barrier = self.barrier or asyncio.Barrier(2)
        return await self.barrier.wait()

    @concurrent
    async def pass_on(self, channel: Channel, group: str) -> None:
        await channel.put("from beside")
        await self.send("message", group, 0)


class Caller(Worker):
    """Calls another group, and receives from it."""

    async def take(self, channel: Channel, name: str) -> list[str]:
        return [await channel.get(), await self.recv(name, 0)]


class Quieter(Overtaken):
    """Its ``health`` waits for its turn again."""

    async def health(self) -> str:
        return threading.current_thread().name
