"""Stops processes of a run for moments, at random."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator

import psutil

LONGEST = 0.08
"""Seconds of a stop, after which nobody is given up yet."""


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


@contextlib.asynccontextmanager
async def nemesis(before: set[int], seed: float) -> AsyncIterator[None]:
    """Stops one child after the other, but those that there were ``before``; all go on at the end."""
    pids = sorted(children() - before)
    stopping = asyncio.create_task(_stop_now_and_then(pids, random.Random(seed)), name="nemesis")
    try:
        yield
    finally:
        stopping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stopping


async def _stop_now_and_then(pids: list[int], chance: random.Random) -> None:
    while True:
        with contextlib.suppress(ProcessLookupError):
            pid = chance.choice(pids)
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(chance.random() ** 3 * LONGEST)
            finally:
                os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(chance.random() * 0.01)
