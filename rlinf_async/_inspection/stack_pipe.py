"""The pipe into which this process writes the stacks of its threads when its daemon sends a signal.

    daemon   opens the pipe as /proc/PID/fd, sends SIGNAL, reads
    process  faulthandler's handler writes, in C: without the GIL, wherever a thread is stuck

The process holds both ends in one descriptor and never reads it, so that the pipe always has a reader. Otherwise a
write after the daemon's exit would raise SIGPIPE, whose default action kills the process. When the pipe is full, the
rest of the stacks is lost, because the handler must not block. The pipe keeps its default size, because all of a user's
pipes share a limit (``pipe-user-pages-soft``); the reader may enlarge the pipe for a short time.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
from typing import Final

from rlinf_async._inspection.state.stack_dump import SIGNAL

_NONE: Final = -1

_fd = _NONE
_users = 0

# Held by ``acquire`` and ``release``, as several threads may have clusters; reentrant, as a finalizer may close one.
_lock = threading.RLock()


def acquire() -> int | None:
    """Return the descriptor, opening it if necessary; None if that fails."""
    global _fd, _users
    with _lock:
        if _fd == _NONE:
            _fd = _opened()
        if _fd == _NONE:
            return None
        _users += 1
        return _fd


def release() -> None:
    """End one client's use; the last release closes the pipe."""
    global _users
    with _lock:
        _users = max(0, _users - 1)
        if _users == 0:
            _close()


def _opened() -> int:
    # Leave a user's handler in place. If there is none, ignore the signal first: faulthandler restores the previous
    # action on unregister, and with the default action, a pending signal would kill the process.
    try:
        previous = signal.getsignal(SIGNAL)
        if previous not in (signal.SIG_DFL, signal.SIG_IGN):
            return _NONE
        with contextlib.suppress(ValueError):  # allowed only on the main thread; elsewhere the risk remains
            signal.signal(SIGNAL, signal.SIG_IGN)
        ends = os.pipe2(os.O_CLOEXEC)
        try:
            fd = os.open(f"/proc/self/fd/{ends[1]}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            for end in ends:
                os.close(end)
        faulthandler.register(SIGNAL, file=fd, all_threads=True, chain=False)
    except (OSError, RuntimeError, ValueError):  # no free descriptors, no /proc, or no such signal
        return _NONE
    return fd


def _close() -> None:
    global _fd
    fd, _fd = _fd, _NONE
    if fd == _NONE:
        return
    # Unregister before close(), because after close() the number may belong to another file.
    faulthandler.unregister(SIGNAL)
    with contextlib.suppress(OSError):  # user code may have closed the pipe
        os.close(fd)


def _leave_to_parent() -> None:
    global _users, _lock
    _users, _lock = 0, threading.RLock()
    _close()


os.register_at_fork(after_in_child=_leave_to_parent)
