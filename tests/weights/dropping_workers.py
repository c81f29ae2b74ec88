"""Workers that are at the ends of a link, and close it in no way at all."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from typing import Any

import torch

from rlinf_async import Worker
from rlinf_async._worker import context
from rlinf_async.errors import DeadlineExceeded
from rlinf_async.weights import Publisher, Subscriber
from tests._support import leaks
from tests._support.forked_children import exit_code, forked
from tests._support.weight_parts import WorkerLink


class End(Worker):
    """A sender or a receiver."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Any] = []
        self._held = {"a": torch.zeros(5)}
        self._before: leaks.Snapshot

    def look(self) -> None:
        leaks.warm_up()
        self._before = leaks.take()

    async def publish(self, value: float) -> None:
        """To a receiver, which is the first thing that it hears of, or the one that there is."""
        if not self._kept:
            self._kept.append(Publisher({"a": torch.zeros(5)}))
            self._kept[0].add(0, WorkerLink("receivers", 0, "policy"))
            await self._kept[0].connect(20)
        await (await self._kept[0].publish({"a": torch.full((5,), value)}))

    async def receive(self, version: int) -> float:
        if not self._kept:
            self._kept.append(Subscriber(WorkerLink("senders", 0, "policy"), self._held))
            await self._kept[0].connect(20)
        await self._kept[0].wait_version(version, 20)
        return float(self._held["a"][0])

    async def end(self) -> str:
        """What the receiver hears when nothing more comes."""
        try:
            await self._kept[0].receive(20)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    async def close_end(self) -> None:
        await self._kept.pop().close()

    def drop(self) -> tuple[list[str], list[str]]:
        """The warnings, and what is left."""
        return self._told(), leaks.settle(self._before)

    def _told(self) -> list[str]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            self._kept.clear()
            gc.collect()
        texts = [str(each.message) for each in told if each.category is ResourceWarning]
        return [text for text in texts if "policy" in text]  # in a forked process there are copies of sockets too

    def posted(self) -> int:
        """Receives that wait in this process."""
        assert context.exchange is not None
        return sum(len(stream.arrivals._wanted) for stream in context.exchange._mailbox.inbox._streams.values())

    def use_in_child(self) -> list[str]:
        """What a forked process hears of the receiver, and the warnings there when it drops it.

        At the fork another thread hears a word.
        """
        read, write = os.pipe()
        hears, goes_on = threading.Event(), threading.Event()

        def hear(link: WorkerLink) -> None:
            with link._order:
                hears.set()
                goes_on.wait(20)

        threading.Thread(target=hear, args=(self._kept[0].link,)).start()
        hears.wait(20)

        def use() -> None:
            (end,) = self._kept
            with open(write, "w") as told:
                for attempt in (lambda: end.receive(5), lambda: end.wait_version(9, 5), end.close):
                    try:
                        told.write(f"{asyncio.run(attempt())}\n")
                    except Exception as error:
                        told.write(f"{type(error).__name__}: {error}\n")
                end = None
                told.writelines(self._told())

        with forked(use) as child, open(read) as told:
            os.close(write)
            said = told.read().splitlines()
            goes_on.set()
            assert exit_code(child) == 0
        return said

    async def miss(self, side: str, name: str) -> str:
        """The error of one that is alone with its name."""
        end: Any
        if side == "sender":
            end = Publisher({"a": torch.zeros(5)}, model_id=name)
            end.add(0, WorkerLink("receivers", 0, name))
        else:
            end = Subscriber(WorkerLink("senders", 0, name), self._held, model_id=name)
        try:
            await end.connect(2)
        except DeadlineExceeded as error:
            return str(error)
        finally:
            await end.close()
        return "nothing"

    def pid(self) -> int:
        return os.getpid()
