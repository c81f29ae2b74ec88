"""Socket reading on a worker's main thread while that is idle: in its event loop, and where it blocks.

A worker's main thread runs user code, and a second thread reads meanwhile.  While the main thread waits, the second one
would only be in the way: a wake-up of it, and another one of the main thread, for whatever comes.  So the main thread
reads too, in its loop and where it waits outside of it, in a ``def`` method::

    reader = IdleReader(loop, selector, other_selector)      on that thread
    reader.add(sock.fileno(), read)                          read(True) within the loop, read(False) outside of it
    gate = reader.gate()                                     later, with the loop stopped:
    gate.wait(10)                                            reads until gate.open() is called, for 10 s at most

The kernel wakes one thread for what arrives: this one if it waits, otherwise the other one (``SharedSelector``).
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
"""A thread that has polled within this time is likely to poll again; the other thread leaves to it what has come."""

_MAX_POLL_S: Final = 24 * 3600.0
"""That the kernel is asked to wait at once; it counts milliseconds, in 32 bits."""

OnReadable = Callable[[bool], None]
"""Reads what is there; told whether the loop runs."""


class IdleReader:
    """The reading of one thread; made there.  ``add`` and ``remove`` may be used from any thread.

    Attributes:
        loop: of that thread.
    """

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
        """Has it read; before the other loop, which then comes second."""
        # EPOLLEXCLUSIVE wakes the first of those that wait, in the order in which they registered.  If the socket loop
        # came first, each frame would wake that thread, and then, across threads, the main one that was idle all along.
        # tests/_wire/reading/test_shared_selector.py::
        # test_the_idle_loop_that_registered_first_reads_and_the_other_one_sleeps
        self._other.share(fd)
        self._readers[fd] = read
        self._selector.read_in_select(fd, lambda: _handle(read, True))
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)

    def remove(self, fd: int) -> None:
        """Idempotent; before the descriptor is closed, since its number may then come to mean another file."""
        if self._readers.pop(fd, None) is not None:
            self._selector.stop_reading(fd)
            with contextlib.suppress(OSError):  # user code has closed it under us
                self._epoll.unregister(fd)

    def gate(self) -> Gate:
        """Where this thread may wait, once.

        The thread itself reads meanwhile, but for a coroutine of its loop, which blocks by RLinf's rules, and for a
        handler of SIGALRM that raises: neither may be where a frame is handled.
        """
        if running_loop() is not None or callable(signal.getsignal(signal.SIGALRM)):
            return LockGate()
        return _Gate(self)

    def has_just_polled(self) -> bool:
        """Whether this thread has just polled its sockets; from any thread."""
        return clock.monotonic() - self._selector.polled_at < RECENT_POLL_S

    def read_for(self, seconds: float) -> None:
        """Waits until something arrives or ``wake`` is called, and reads it."""
        arrived = self._epoll.poll(seconds, len(self._readers) + 1)
        self._selector.polled_at = clock.monotonic()
        for fd, _ in arrived:
            read = self._readers.get(fd)
            if read is not None:
                _handle(read, False)
            elif fd == self._wakeup:
                os.eventfd_read(fd)

    def wake(self) -> None:
        """From any thread."""
        if threading.get_ident() != self._thread:
            os.eventfd_write(self._wakeup, 1)

    def forget(self) -> None:
        """In a forked child: lets go of what is the parent's."""
        self._readers.clear()
        self._epoll.close()
        os.close(self._wakeup)


def _handle(read: OnReadable, in_loop: bool) -> None:
    reads(True)
    try:
        read(in_loop)
    finally:
        reads(False)


class _Gate:
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
