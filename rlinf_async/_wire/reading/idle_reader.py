"""Lets a worker's idle main thread read its sockets, in its loop or while blocked; arbitrates between two readers.

While a worker's main thread runs user code, a second thread reads the sockets. While the main thread waits, that detour
would only cost time, because each frame would wake the second thread first. So the main thread reads, too, both in its
loop and while it is blocked in a ``def`` method::

    reader = IdleReader(loop, selector, other_selector)      on that thread
    reader.add(sock.fileno(), read)                          read(True) within the loop, read(False) outside of it
    gate = reader.gate()                                     later, with the loop stopped:
    gate.wait(10)                                            reads until gate.open() is called, for 10 s at most

The kernel wakes one thread per event: the main thread if it is waiting, otherwise the second thread
(``SharedSelector``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import threading
from asyncio import _get_running_loop as running_loop
from collections.abc import Callable
from typing import Final

from rlinf_async._core import clock
from rlinf_async._waits.thread_gate import Gate, LockGate, reads
from rlinf_async._wire.reading.shared_selector import SharedSelector

RECENT_POLL_S: Final = 1e-3
"""Seconds after a thread's last poll during which it will probably poll again, so the other thread does not read."""

_MAX_POLL_S: Final = 24 * 3600.0
"""Maximum duration of one wait; the kernel counts milliseconds in 32 bits."""

OnReadable = Callable[[bool], None]


class ReadArbiter:
    """An arbiter that lets one thread read at a time, and wakes coroutines in the order in which frames were read.

    A frame read by the socket thread wakes coroutines of the other loop through ``call_soon_threadsafe``, in two steps.
    A frame read by that loop's own thread wakes them immediately. If the socket thread has read frame 1 and the main
    thread reads frame 2 before that call has run, the waiter of frame 2 would run first. So ``handled`` queues another
    call behind the handlers' calls, and the main thread does not read until that call has run.

    tests/_wire/reading/test_second_thread.py::test_the_waiter_of_what_was_read_first_runs_first

    Attributes:
        lock: held while frames are read and handled.
        idle_loop: the other loop, which reads while it is idle; None if there is no other loop.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.idle_loop: asyncio.AbstractEventLoop | None = None
        self._handled = 0
        self._catching_up = False

    def handled(self) -> None:
        """Record, under the lock, that the socket thread has handled frames and may have woken coroutines."""
        if self.idle_loop is None:
            return
        self._handled += 1
        if not self._catching_up:
            self._catching_up = True
            self.idle_loop.call_soon_threadsafe(self._catch_up, self._handled)

    def _catch_up(self, handled: int) -> None:
        """Allow the other loop's thread to read again, after the calls queued there before this call."""
        with self.lock:
            self._catching_up = handled != self._handled
            if self._catching_up and self.idle_loop is not None:
                self.idle_loop.call_soon(self._catch_up, self._handled)

    @property
    def may_read(self) -> bool:
        """True if the other loop's thread may read; the caller holds the lock."""
        return not self._catching_up


class IdleReader:
    """A reader for one thread and its loop, created on that thread. Any thread may call ``add`` and ``remove``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, selector: SharedSelector, other: SharedSelector) -> None:
        self.loop = loop
        self._selector = selector
        self._other = other
        self._thread = threading.get_ident()
        self._readers: dict[int, OnReadable] = {}
        self._epoll = select.epoll()
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wakeup, select.EPOLLIN)

    def __repr__(self) -> str:
        return f"<IdleReader [{len(self._readers)} sockets]>"

    def add(self, fd: int, read: OnReadable) -> None:
        """Make the reader's thread read a descriptor, in preference to the other loop."""
        # EPOLLEXCLUSIVE wakes the waiter that registered first. If the socket loop came first, each frame would wake
        # its thread, which would have to wake the idle main thread. tests/_wire/reading/test_shared_selector.py::
        # test_the_idle_loop_that_registered_first_reads_and_the_other_one_sleeps
        self._other.share(fd)
        self._readers[fd] = read
        self._selector.read_in_select(fd, lambda: _handle(read, True))
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)

    def remove(self, fd: int) -> None:
        """Stop reading a descriptor, before it is closed and its number reused. Idempotent."""
        if self._readers.pop(fd, None) is not None:
            self._selector.stop_reading(fd)
            with contextlib.suppress(OSError):  # user code may have closed the descriptor
                self._epoll.unregister(fd)

    def gate(self) -> Gate:
        """Return a gate at which this thread may wait once.

        The thread reads sockets while it waits, with two exceptions: when a coroutine of its loop blocks, which RLinf's
        rules allow, and when a SIGALRM handler may raise, because an exception must not interrupt the handling of a
        frame.
        """
        if running_loop() is not None or callable(signal.getsignal(signal.SIGALRM)):
            return LockGate()
        return _ReaderGate(self)

    def has_just_polled(self) -> bool:
        return clock.monotonic() - self._selector.polled_at < RECENT_POLL_S

    def read_for(self, seconds: float) -> None:
        arrived = self._epoll.poll(seconds, len(self._readers) + 1)
        self._selector.polled_at = clock.monotonic()
        for fd, _ in arrived:
            read = self._readers.get(fd)
            if read is not None:
                _handle(read, False)
            elif fd == self._wakeup:
                os.eventfd_read(fd)

    def wake(self) -> None:
        if threading.get_ident() != self._thread:
            os.eventfd_write(self._wakeup, 1)

    def forget(self) -> None:
        """Drop the parent's descriptors in a forked child."""
        self._readers.clear()
        self._epoll.close()
        os.close(self._wakeup)


def _handle(read: OnReadable, in_loop: bool) -> None:
    reads(True)
    try:
        read(in_loop)
    finally:
        reads(False)


class _ReaderGate:
    __slots__ = ("_is_open", "_reader")

    def __init__(self, reader: IdleReader) -> None:
        self._reader = reader
        self._is_open = False

    def open(self) -> None:
        self._is_open = True
        self._reader.wake()

    def wait(self, seconds: float) -> bool:
        until = clock.monotonic() + seconds
        while not self._is_open:
            left = until - clock.monotonic()
            if left < 0:
                return False
            self._reader.read_for(min(left, _MAX_POLL_S))
        return True
