"""``SignOfLife``: a timer that a daemon rewinds repeatedly; when it expires, the guardian kills the daemon."""

from __future__ import annotations

import ctypes
import os
import select
import time
from typing import Final

_SPEC: Final = ctypes.c_long * 4
"""Type of ``struct itimerspec``: seconds and nanoseconds of the interval, then of the time until expiry."""


class SignOfLife:
    """A kernel timer (``timerfd``), created before the fork so that daemon and guardian share it.

    A stopped daemon (SIGSTOP, a debugger) cannot notice that other nodes have declared its node lost.  Its guardian
    can, and kills the daemon before another node restarts its ranks; the daemon's own timer would wait for SIGCONT.

    Raises:
        OSError: the kernel has no free descriptor.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def fileno(self) -> int:
        """Return the descriptor, readable from the timer's expiry until the next ``wind_up``."""
        return self._fd

    @property
    def has_run_out(self) -> bool:
        return bool(select.select([self._fd], [], [], 0)[0])

    def wind_up(self, seconds: float) -> None:
        """Restart the timer with ``seconds``; 0 disarms it."""
        whole, part = divmod(seconds, 1)
        self._libc.timerfd_settime(self._fd, 0, _SPEC(0, 0, int(whole), int(part * 1e9)), None)
