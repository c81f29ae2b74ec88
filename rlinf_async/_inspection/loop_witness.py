"""``LoopWitness``: a thread that answers the daemon for an event loop of the user's that is blocked.

A driver inside asyncio handles frames on the user's loop, so that a question lies unread while the loop stands still,
though another thread could tell all: tasks, what they await, and what blocks the loop.  The daemon wakes this one::

    daemon   opens /proc/PID/fd/N, which the process has told in its HELLO, and writes a byte
    process  the thread reads it, and answers

A handler of a signal would do without the thread.  But it would have to interrupt system calls, of C code too that does
not expect that.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Final

_MAX_READ_BYTES: Final = 4096
"""Bytes that are answered at once: each daemon request writes one."""


class LoopWitness:
    """One thread, until ``close``.

    Attributes:
        fd: the descriptor that the daemon opens.

    Raises:
        OSError, RuntimeError: there are no more descriptors, or threads.
    """

    def __init__(self, answer: Callable[[], None]) -> None:
        self._answer = answer
        self._is_closed = False
        self._read_fd, self.fd = os.pipe2(os.O_CLOEXEC)
        try:
            threading.Thread(target=self._run, name="rlinf-witness", daemon=True).start()
        except RuntimeError:
            self.leave_to_parent()
            raise
        _witnesses.add(self)

    def __repr__(self) -> str:
        return f"<LoopWitness [{'closed' if self._is_closed else f'descriptor {self.fd}'}]>"

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # user code has closed it under us
            while os.read(self._read_fd, _MAX_READ_BYTES) and not self._is_closed:
                self._answer()
            os.close(self._read_fd)

    def close(self) -> None:
        """Ends the thread, from any; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        # Not by the end of the file alone: a child may have a copy of this end that nothing closes there.
        with contextlib.suppress(OSError):
            os.write(self.fd, b"\0")
            os.close(self.fd)

    def leave_to_parent(self) -> None:
        """In a forked child, which has no such thread: closes its copies."""
        if not self._is_closed:
            self._is_closed = True
            for fd in (self.fd, self._read_fd):
                with contextlib.suppress(OSError):
                    os.close(fd)


_witnesses: weakref.WeakSet[LoopWitness] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for witness in list(_witnesses):
        witness.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)
