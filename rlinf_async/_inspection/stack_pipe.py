"""Pipe into which this process writes the stacks of its threads when its daemon sends it a signal.

    daemon   opens the pipe by /proc/PID/fd, sends SIGNAL, reads
    process  faulthandler's handler writes, in C: without the GIL, wherever a thread is stuck

The process holds both ends, in one descriptor, and reads neither. So the pipe always has a reader: otherwise a write
after the daemon's exit would raise SIGPIPE, whose default action ends the process. A full pipe takes no more, and the
rest of the stacks is lost, because the handler must not block. The pipe keeps its usual size, because the pipes of a
user have a common limit (``pipe-user-pages-soft``); its reader may enlarge it for a moment.
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


def acquire() -> int | None:
    """Return the descriptor, opened if necessary; None if this process cannot have one."""
    global _fd, _users
    if _fd == _NONE:
        _fd = _opened()
    if _fd == _NONE:
        return None
    _users += 1
    return _fd


def release() -> None:
    """Release one client's use; the last release closes the pipe."""
    global _users
    _users = max(0, _users - 1)
    if _users == 0:
        _close()


def _opened() -> int:
    # Leave a handler of the user's alone. Without one, ignore the signal first: faulthandler restores the previous
    # action on unregister, and with the default action a signal on its way would end the process.
    try:
        previous = signal.getsignal(SIGNAL)
        if previous not in (signal.SIG_DFL, signal.SIG_IGN):
            return _NONE
        with contextlib.suppress(ValueError):  # only the main thread may; elsewhere that risk remains
            signal.signal(SIGNAL, signal.SIG_IGN)
        ends = os.pipe2(os.O_CLOEXEC)
        try:
            fd = os.open(f"/proc/self/fd/{ends[1]}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            for end in ends:
                os.close(end)
        faulthandler.register(SIGNAL, file=fd, all_threads=True, chain=False)
    except (OSError, RuntimeError, ValueError):  # no descriptors, no /proc, or a system without this signal
        return _NONE
    return fd


def _close() -> None:
    global _fd
    fd, _fd = _fd, _NONE
    if fd == _NONE:
        return
    # Unregister before close(): afterwards the number may belong to another file.
    faulthandler.unregister(SIGNAL)
    with contextlib.suppress(OSError):  # user code may have closed it
        os.close(fd)


def _leave_to_parent() -> None:
    global _users
    _users = 0
    _close()


os.register_at_fork(after_in_child=_leave_to_parent)
