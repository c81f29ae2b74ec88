"""Mutual exclusion of two threads that read a process's sockets, which keeps wake-ups in the order of frames."""

from __future__ import annotations

import asyncio
import threading


class ReadArbiter:
    """Has one thread read at a time, and coroutines woken in the order in which their frames were read.

    What the socket thread has read wakes coroutines of the other loop by way of ``call_soon_threadsafe``: a call first,
    which then wakes.  What that loop's own thread reads wakes them at once.  So if the socket thread has read frame 1
    and the main thread reads frame 2 before the call has been made, the waiter of frame 2 runs first.  Therefore
    ``handled`` puts one more call behind those of the handlers, and the main thread does not read until that has run:
    then all before it have.

    tests/_wire/reading/test_second_thread.py::test_the_waiter_of_what_was_read_first_runs_first

    Attributes:
        lock: held while frames are read and handled.
        idle_loop: the other loop, which reads while it is idle; None where there is none.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.idle_loop: asyncio.AbstractEventLoop | None = None
        self._handled = 0
        self._catching_up = False

    def handled(self) -> None:
        """The socket thread has handled what it read, and may have woken coroutines; under the lock."""
        if self.idle_loop is None:
            return
        self._handled += 1
        if not self._catching_up:
            self._catching_up = True
            self.idle_loop.call_soon_threadsafe(self._catch_up, self._handled)

    def _catch_up(self, handled: int) -> None:
        """On the other loop, behind the calls that were handed over to it before this one."""
        with self.lock:
            self._catching_up = handled != self._handled
            if self._catching_up and self.idle_loop is not None:
                self.idle_loop.call_soon(self._catch_up, self._handled)

    @property
    def may_read(self) -> bool:
        """Whether the other loop's thread may read; under the lock."""
        return not self._catching_up
