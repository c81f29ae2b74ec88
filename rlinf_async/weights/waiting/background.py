"""A task that goes on in the loop that it was started in, and is ended from any."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

from rlinf_async.weights.waiting.changes import Changes

_LOOK_AGAIN: Final = 0.5
"""Seconds after which ``end`` looks whether another thread's loop has stopped, of which nobody hears."""


class Background:
    """One at a time.

    Args:
        changes: are told of its end.
    """

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._task: asyncio.Task[None] | None = None
        self._pid = 0
        """Of the process where it is: in a child that is forked from it nothing goes on."""

    @property
    def is_running(self) -> bool:
        task = self._task
        return task is not None and not task.done()

    def start(self, begin: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(begin(), name=name)
        task.add_done_callback(self._over)
        self._task, self._pid = task, os.getpid()
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None
        self._changes.notify()

    async def end(self) -> None:
        """Cancels it, and waits for its end, unless it is in a loop that does not run: that would be for ever."""
        task = self._task
        if task is None or task.done() or os.getpid() != self._pid:
            return
        loop = task.get_loop()
        if loop is asyncio.get_running_loop():
            task.cancel()
        else:
            with contextlib.suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(task.cancel)
        while loop.is_running() and not await self._changes.wait_until(task.done, _LOOK_AGAIN):
            pass
