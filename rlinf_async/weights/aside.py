"""A thread for what would hold up an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

_AT_ONCE: Final = 1 << 20
"""Bytes that are copied sooner than a thread is asked to."""

T = TypeVar("T")


class Aside:
    """Does one thing after the other, in a thread that is there once there is something to do.

    Args:
        label: the thread's name.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._executor: ThreadPoolExecutor | None = None

    async def do(self, function: Callable[..., T], *args: Any, nbytes: int | None) -> T:
        """Calls a function, in the thread if it copies so much that the loop should go on meanwhile.

        Nobody can stop it: a cancellation is passed on once it is over.

        Args:
            nbytes: that it copies; None: it waits for others too.

        Raises:
            asyncio.CancelledError: with what the function raised, if it did, as its cause.
        """
        if nbytes is not None and nbytes <= _AT_ONCE:
            return function(*args)
        future = asyncio.get_running_loop().run_in_executor(self._thread(), function, *args)
        return await finish_in_thread(future)

    def start(self, function: Callable[..., None], *args: Any, nbytes: int) -> None:
        """Has something done that nobody waits for, and that raises nothing."""
        if nbytes <= _AT_ONCE:
            function(*args)
        else:
            self._thread().submit(function, *args)

    def _thread(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix=self._label)
        return self._executor

    def close(self) -> None:
        """Waits for the end of what is being done."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()


async def finish_in_thread(future: asyncio.Future[T]) -> T:
    """Awaits what a thread does and nobody can stop; a cancellation is passed on once it is over.

    Raises:
        asyncio.CancelledError: with what went wrong in the thread, if something did, as its cause.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from future.exception()
    return future.result()
