"""A condition that others wait for: in any loop, with a deadline, without polling."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from rlinf_async.errors import DeadlineExceeded
from rlinf_async.work import Work

T = TypeVar("T")


class Changes:
    """Says that something has changed, from any thread, to whoever waits for a condition that may have come true."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: Work[None] = Work()

    def notify(self) -> None:
        """Everybody looks again."""
        with self._lock:
            current, self._next = self._next, Work()
        current._settle()

    async def wait_until(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Whether the condition has come true within ``timeout`` seconds; asked after every change."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                change = self._next
            if condition():
                return True
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return False
            with contextlib.suppress(DeadlineExceeded):
                await change.async_wait(remaining)


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
