"""An event loop in a background thread, for scripts that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop


class LoopThread:
    """A daemon thread that runs a loop until ``stop``; it does not keep the interpreter from ending."""

    def __init__(self, name: str = "rlinf-loop") -> None:
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, callback: Callable[[], object]) -> None:
        self.loop.call_soon_threadsafe(callback)

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Stops the loop and waits for the thread; not from the thread itself.

        Args:
            last: makes a coroutine that is awaited on the loop before it stops.
        """
        if last is not None:
            asyncio.run_coroutine_threadsafe(last(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
