"""A condition that others wait for: in any loop, with a deadline, without polling."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from rlinf_async.errors import DeadlineExceeded
from rlinf_async.work import Work


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
