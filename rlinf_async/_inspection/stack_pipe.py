"""The pipe into which this process writes the stacks of its threads when its daemon sends it a signal.

    daemon   opens the pipe by /proc/PID/fd, sends SIGNAL, reads
    process  faulthandler's handler writes, in C: without the interpreter's lock, from whatever a thread is stuck in

The process itself has both ends, in one descriptor, and reads none of it.  So there always is a reader: to write when
the daemon has gone away would raise SIGPIPE, and end a process that has that signal's default back.  A full pipe takes
no more, and what is left of the stacks is lost, since the handler must not block.  The pipe keeps its usual size, since
what the pipes of a user may have in all is limited (``pipe-user-pages-soft``); its reader may enlarge it for a moment.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from typing import Final

from rlinf_async._inspection.state.stack_dump import SIGNAL

_NONE: Final = -1

_fd = _NONE
_users = 0
"""Clients of this process: all have the same pipe."""


def acquire() -> int | None:
    """The descriptor; None where this process has none and can have none."""
    global _fd, _users
    if _fd == _NONE:
        _fd = _opened()
    if _fd == _NONE:
        return None
    _users += 1
    return _fd


def release() -> None:
    """A client that has acquired it is closed; the last one closes the pipe."""
    global _users
    _users = max(0, _users - 1)
    if _users == 0:
        _close()


def _opened() -> int:
    # A handler that the user has set is left alone.  Where there is none the signal is ignored first, and faulthandler
    # puts that back when it is told to stop: a signal that is on its way then would end the process.
    try:
        previous = signal.getsignal(SIGNAL)
        if previous not in (signal.SIG_DFL, signal.SIG_IGN):
            return _NONE
        with contextlib.suppress(ValueError):  # not the main thread, which alone may; then that is risked
            signal.signal(SIGNAL, signal.SIG_IGN)
        ends = os.pipe2(os.O_CLOEXEC)
        try:
            fd = os.open(f"/proc/self/fd/{ends[1]}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            for end in ends:
                os.close(end)
        faulthandler.register(SIGNAL, file=fd, all_threads=True, chain=False)
    except (OSError, RuntimeError, ValueError):  # no descriptors, no /proc, a system without this signal
        return _NONE
    return fd


def _close() -> None:
    global _fd
    fd, _fd = _fd, _NONE
    if fd == _NONE:
        return
    faulthandler.unregister(SIGNAL)  # first: the number may mean another file as soon as it is closed
    with contextlib.suppress(OSError):  # the user's code has closed it under us
        os.close(fd)


def _leave_to_parent() -> None:
    """In a forked child: its stacks are not its parent's."""
    global _users
    _users = 0
    _close()


os.register_at_fork(after_in_child=_leave_to_parent)
