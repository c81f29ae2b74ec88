"""Arbitration between two threads that read a process's sockets."""

from __future__ import annotations

import asyncio
import threading


class Turns:
    """One thread at a time, and nobody is woken before those for whom something came earlier.

    What the socket thread has read wakes coroutines of the other loop by way of ``call_soon_threadsafe``: a call first,
    which then wakes.  What that loop's own thread reads wakes them at once.  So if the socket thread has read frame 1
    and the main thread reads frame 2 before the call has been made, the waiter of frame 2 runs first.  Therefore
    ``hand_over`` puts one more call behind those of the handlers, and the main thread does not read until that has run:
    then all before it have.

    tests/_wire/reading/test_second_thread.py::test_the_waiter_of_what_was_read_first_runs_first

    Attributes:
        lock: held while frames are read and handled.
        idle: the other loop, which reads while it is idle; None where there is none.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.idle: asyncio.AbstractEventLoop | None = None
        self._handed_over = 0
        self._catching_up = False

    def hand_over(self) -> None:
        """The socket thread has handled what it read, and may have woken somebody; under the lock."""
        if self.idle is None:
            return
        self._handed_over += 1
        if not self._catching_up:
            self._catching_up = True
            self.idle.call_soon_threadsafe(self._catch_up, self._handed_over)

    def _catch_up(self, handed_over: int) -> None:
        """On the other loop, behind the calls that were handed over to it before this one."""
        with self.lock:
            self._catching_up = handed_over != self._handed_over
            if self._catching_up and self.idle is not None:
                self.idle.call_soon(self._catch_up, self._handed_over)

    @property
    def may_read(self) -> bool:
        """Whether the other loop's thread may read; under the lock."""
        return not self._catching_up
