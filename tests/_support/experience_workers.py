"""Workers that put samples into an experience, take groups of it, and die while they do."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

import torch

from rlinf_async import ClosedError, Experience, Worker, publish


class Player(Worker):
    """Does with an experience what it is told."""

    def put_all(self, experience: Experience, samples: list[Any], **how: Any) -> None:
        for sample in samples:
            experience.put(sample, **how)

    async def put_at_once(self, experience: Experience, names: list[int], size: int) -> None:
        puts = [experience.put(bytes(size), version=0, group=name) for name in names]
        for put in puts:
            with contextlib.suppress(ClosedError):
                await put

    def take(self, experience: Experience, groups: int, key: Any = None) -> tuple[list[Any], list[int], list[int]]:
        with experience.take(groups, key) as batch:
            return batch.items, batch.versions, batch.staleness

    def take_and_be(self, experience: Experience, groups: int, done: int, sent: int) -> None:
        with experience.take(groups) as batch:
            if done:
                batch.done(done)
            os.kill(os.getpid(), sent)
            time.sleep(60)

    async def set_version(self, experience: Experience, version: int) -> None:
        await experience.set_version(version)

    async def publish(self, versions: int) -> None:
        self.weights = publish({"weight": torch.zeros(4)}, to="players")
        for _ in range(versions):
            await self.weights.send()

    async def take_behind_sends(self, experience: Experience, sends: int) -> list[int]:
        """Take right after each version, for which a sample is there as well as for the one before."""
        staleness = []
        for _ in range(sends):
            before = self.weights.version
            for version in (before, before + 1):
                await experience.put("sample", version=version, group=version)
            await self.weights.send()
            async with experience.take() as batch:
                staleness += batch.staleness
        return staleness

    async def unpublish(self) -> None:
        await self.weights.close()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
