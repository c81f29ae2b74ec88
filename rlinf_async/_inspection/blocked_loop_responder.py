"""``BlockedLoopResponder``: a thread that answers the daemon while the user's event loop is blocked.

A driver inside asyncio handles frames on the user's loop. While that loop is blocked, a request stays unread, although
another thread could report tasks, their waits, and the code that blocks the loop. The daemon therefore wakes a thread::

    daemon   opens /proc/PID/fd/N, whose number was in the process's HELLO, and writes a byte
    process  the thread reads the byte, and answers

A signal handler would not require a thread, but would interrupt system calls, even in C code that does not expect it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Final

# Each request of a daemon writes one byte; a single answer covers all bytes that are read together.
_MAX_READ_BYTES: Final = 4096


class BlockedLoopResponder:
    """A thread that answers until ``close``; the daemon opens ``fd``.

    Raises:
        OSError, RuntimeError: no descriptor or no thread is available.
    """

    def __init__(self, answer: Callable[[], None]) -> None:
        self._answer = answer
        self._is_closed = False
        self._read_fd, self.fd = os.pipe2(os.O_CLOEXEC)
        try:
            threading.Thread(target=self._run, name="rlinf-blocked-loop", daemon=True).start()
        except RuntimeError:
            self.leave_to_parent()
            raise
        _responders.add(self)

    def __repr__(self) -> str:
        return f"<BlockedLoopResponder [{'closed' if self._is_closed else f'descriptor {self.fd}'}]>"

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # user code may have closed the descriptor
            while os.read(self._read_fd, _MAX_READ_BYTES) and not self._is_closed:
                self._answer()
            os.close(self._read_fd)

    def close(self) -> None:
        """Stop the thread. Idempotent; any thread may call this."""
        if self._is_closed:
            return
        self._is_closed = True
        # Also write a byte, because the reader sees no end-of-file if a forked child has a copy of this end.
        with contextlib.suppress(OSError):
            os.write(self.fd, b"\0")
            os.close(self.fd)

    def leave_to_parent(self) -> None:
        """Close a forked child's copies of the descriptors, because the child has no responder thread."""
        if not self._is_closed:
            self._is_closed = True
            for fd in (self.fd, self._read_fd):
                with contextlib.suppress(OSError):
                    os.close(fd)


_responders: weakref.WeakSet[BlockedLoopResponder] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for responder in list(_responders):
        responder.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)
