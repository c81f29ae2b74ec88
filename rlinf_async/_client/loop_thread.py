"""An event loop in a background thread, for a script without a loop, or in addition to a worker's main loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvloop

from rlinf_async._core.segment import close_fds
from rlinf_async._waits.thread_gate import reads

# Number of descriptors that a process's first uvloop opens, with a margin.
_LOOP_DESCRIPTORS: Final = 8


class LoopThread:
    """A daemon thread that runs a loop until ``stop``; it does not keep the interpreter from exiting.

    Args:
        loop: the loop, which continues even if user code stops it; by default a new uvloop.
        on_error: called with an error that escapes the loop, which then continues; by default, the thread ends.
    """

    def __init__(
        self,
        name: str = "rlinf-loop",
        loop: asyncio.AbstractEventLoop | None = None,
        on_error: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.loop = loop or _new_loop()
        self._on_error = on_error
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self.loop.close()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        reads(True)
        while not self._is_over:
            try:
                self.loop.run_forever()
            except BaseException as error:
                if self._on_error is None:
                    raise
                self._on_error(error)

    def call(self, callback: Callable[[], object]) -> None:
        self.loop.call_soon_threadsafe(callback)

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Stop the loop and wait for the thread. Do not call this from the thread itself.

        Args:
            last: creates a coroutine that is awaited on the loop before it stops.
        """
        if last is not None:
            asyncio.run_coroutine_threadsafe(last(), self.loop).result()
        self._is_over = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    # If too few descriptors are free, raise OSError here, because libuv would abort the process.
    free: list[int] = []
    try:
        while len(free) < _LOOP_DESCRIPTORS:
            free.append(os.eventfd(0))
    finally:
        close_fds(free)
    return uvloop.new_event_loop()
