"""Coroutines behind methods that block where no loop runs, and return a ``Work`` where one does."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from asyncio import _get_running_loop as running_loop
from collections.abc import Callable, Coroutine
from typing import Any

from rlinf_async.tasks import Tasks


class Bridge:
    """What one end of a synchronisation runs its coroutines with; owns their tasks.

    In a coroutine, ``run`` starts a task of the loop that runs there.  Elsewhere it blocks: the coroutine runs in the
    calling thread, on a loop that this bridge keeps for that purpose and that stands still in between.
    """

    def __init__(self) -> None:
        self._tasks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Tasks] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._runner: asyncio.Runner | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any], what: str) -> Any:
        """Starts it.

        Returns:
            In a coroutine a ``Work``, whose last waiter, if cancelled, cancels it; elsewhere the result.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self._block(coroutine)
        tasks = self._tasks.get(loop)
        if tasks is None:
            tasks = self._tasks[loop] = Tasks(loop, _on(loop))
        return tasks.run(coroutine, what, abandonable=True)

    def _block(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        with self._lock:
            if self._runner is None:
                self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
                weakref.finalize(self, _close, self._runner)
            return self._runner.run(coroutine)

    async def settle(self) -> None:
        """Cancels what still goes on in the loop that runs here, and waits for its end."""
        tasks = self._tasks.pop(asyncio.get_running_loop(), None)
        if tasks is not None:
            await tasks.settle()

    def release(self) -> None:
        """Gives back the loop for blocking calls; not from within one of them."""
        if self._runner is not None and not self._runner.get_loop().is_running():
            _close(self._runner)
            self._runner = None


def _on(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], None]], None]:
    def call(callback: Callable[[], None]) -> None:
        if running_loop() is loop:
            callback()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its tasks with it
                loop.call_soon_threadsafe(callback)

    return call


def _close(runner: asyncio.Runner) -> None:
    with contextlib.suppress(RuntimeError):  # a loop runs here, in which nothing can be awaited by blocking
        runner.close()


async def begin_after(previous: Any, begin: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Begins once what was given up before it has ended."""
    if previous is not None and not previous.done():
        with contextlib.suppress(Exception):
            await previous.async_wait()
    return await begin()
