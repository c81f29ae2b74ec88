"""A non-blocking writer to this process's stdout and stderr: a bounded buffer that a separate thread empties.

The terminal's reader may stop reading for any length of time (``| less``, Ctrl-S); writes do not wait for it. After the
first text that does not fit, the buffer accepts nothing until it is empty, so that the number of missing lines can be
reported in their place.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import select
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from rlinf_async import settings

_PIPE_BUF_BYTES: Final = 4096
"""Bytes that a pipe accepts without blocking once it polls as writable."""
_MAX_NOTICES: Final = 20

_Source = tuple[Any, str, str]


class Terminal:
    """A buffered writer. Any thread may call ``write``; the first text starts the writing thread."""

    def __init__(self) -> None:
        self._limit = int(settings.OUTPUT_BUFFER_BYTES())
        self._lock = threading.Lock()
        self._queue: deque[tuple[_Source, bytes]] = deque()
        self._size = 0
        self._left_out: Counter[_Source] = Counter()
        self._wake = -1
        self._idle = False
        self._end_by: float | None = None
        self._thread: threading.Thread | None = None
        self._on_end: list[Callable[[], None]] = []

    def write(self, stream: Any, text: str, who: str = "", where: str = "") -> None:
        """Queue whole lines. If lines are dropped, the line that reports their number begins with ``who`` and ends with
        ``where``."""
        data = text.encode("utf-8", "backslashreplace")
        with self._lock:
            if self._end_by is not None or stream is None:
                return
            fits = not self._left_out and (not self._size or self._size + len(data) <= self._limit)
            if not fits or not (self._thread or self._start()):
                self._left_out[stream, who, where] += text.count("\n")
                return
            self._queue.append(((stream, who, where), data))
            self._size += len(data)
            if self._idle:
                self._idle = False
                os.eventfd_write(self._wake, 1)

    def _start(self) -> bool:
        thread = threading.Thread(target=self._run, name="rlinf-output", daemon=True)
        try:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            thread.start()
        except (OSError, RuntimeError):
            if self._wake >= 0:
                os.close(self._wake)
                self._wake = -1
            return False
        self._thread = thread
        # A script may exit without closing its cluster; the thread is a daemon, and would be stopped in the middle of a
        # line.
        self._at_exit = weakref.finalize(self, _drain, weakref.WeakMethod(self.close), os.getpid())
        return True

    # -- close ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait up to ``RLINF_OUTPUT_END_S`` seconds for queued text to be written, then stop the thread. Idempotent."""
        seconds = self._end()
        if self._thread is not None:
            # Wait longer than the thread's own limit; it exits in time unless a write blocks although the descriptor
            # polled as writable.
            self._thread.join(seconds + 0.5)

    async def aclose(self) -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop may have been closed
                loop.call_soon_threadsafe(ended.set)

        seconds = self._end(tell)
        if self._thread is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds + 0.5):
                    await ended.wait()
                    self._thread.join()

    def _end(self, tell: Callable[[], None] = lambda: None) -> float:
        seconds = settings.OUTPUT_END_S()
        with self._lock:
            if self._end_by is None:
                self._end_by = time.monotonic() + seconds
            if self._thread is not None:
                self._at_exit.detach()
            if self._wake >= 0:
                self._on_end.append(tell)
                os.eventfd_write(self._wake, 1)
            else:
                tell()
        return seconds

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (item := self._next()) is not None:
                source, data = item
                rest = b""
                # The stream may be closed, or be a user's object that raises; the logs also have the text.
                with contextlib.suppress(Exception):
                    rest = self._put(source[0], data)
                with self._lock:
                    self._size -= len(data)
                    if rest:  # the time limit has expired
                        self._queue.appendleft((source, rest))
                        break
        finally:
            with self._lock:
                self._end_by = self._end_by or time.monotonic()
                left, self._left_out = self._left_out, Counter()
                for source, data in self._queue:
                    left[source] += data.count(b"\n")
                self._queue.clear()
                os.close(self._wake)
                self._wake = -1
                callbacks, self._on_end = self._on_end, []
            with contextlib.suppress(Exception):
                _note_abandoned(left)
            for tell in callbacks:
                tell()

    def _next(self) -> tuple[_Source, bytes] | None:
        while True:
            with self._lock:
                if not self._queue:
                    left, self._left_out = self._left_out, Counter()
                    self._queue.extend((source, _notice(source, count)) for source, count in left.items())
                    self._size += sum(len(data) for _, data in self._queue)
                if self._queue:
                    return self._queue.popleft()
                if self._end_by is not None:
                    return None
                self._idle = True
            self._wait(None)

    def _put(self, stream: Any, data: bytes) -> bytes:
        fd = _descriptor(stream)
        if fd is None:
            stream.write(data.decode())
            stream.flush()
            return b""
        if stream.encoding.lower().replace("-", "") != "utf8":
            data = data.decode().encode(stream.encoding, "backslashreplace")
        start = 0
        while start < len(data):
            if not self._wait(fd):
                return data[start:]
            # Flush the user's own buffered output first, so that it precedes this text.
            stream.flush()
            start += os.write(fd, data[start : start + _PIPE_BUF_BYTES])
        return b""

    def _wait(self, fd: int | None) -> bool:
        """Wait until ``fd`` is writable or, if it is None, for new text or the close. Return False on a timeout."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if fd is not None:
            poll.register(fd, select.POLLOUT)
        while True:
            left = None if self._end_by is None else max(0.0, self._end_by - time.monotonic()) * 1000
            ready = {number for number, _ in poll.poll(left)}
            if self._wake in ready:
                os.eventfd_read(self._wake)
            if fd in ready or (fd is None and ready):
                return True
            if not ready:
                return False


class TerminalStream(io.TextIOBase):
    """A file-like stream whose text is written by a ``Terminal``."""

    def __init__(self, terminal: Terminal, stream: Any, who: str = "", where: str = "") -> None:
        self._terminal = terminal
        self._stream = stream
        self._who = who
        self._where = where

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return str(getattr(self._stream, "encoding", None) or "utf-8")

    def isatty(self) -> bool:
        return bool(self._stream.isatty())

    def fileno(self) -> int:
        return int(self._stream.fileno())

    def write(self, text: str) -> int:
        self._terminal.write(self._stream, text, self._who, self._where)
        return len(text)


def _descriptor(stream: Any) -> int | None:
    """Return the descriptor to which a stream writes; None for streams without one, as in notebooks and tests."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    try:
        return stream.fileno()
    except io.UnsupportedOperation:
        return None


def _notice(source: _Source, count: int) -> bytes:
    _, who, where = source
    lines = "1 line was" if count == 1 else f"{count} lines were"
    return f"{who}… {lines} not shown{where}\n".encode("utf-8", "backslashreplace")


def _note_abandoned(left: Counter[_Source]) -> None:
    notices = [_notice(source, count) for source, count in left.items() if count and source[0] is not sys.stderr]
    if len(notices) > _MAX_NOTICES:
        notices[_MAX_NOTICES:] = [f"… and lines of {len(notices) - _MAX_NOTICES} more\n".encode()]
    fd = _descriptor(sys.stderr)
    if fd is None:
        return
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    for notice in notices:
        if poll.poll(0):
            os.write(fd, notice[:_PIPE_BUF_BYTES])


def _drain(close: weakref.WeakMethod[Callable[[], None]], pid: int) -> None:
    if pid == os.getpid() and (end := close()) is not None:  # a forked child lacks the thread
        end()
