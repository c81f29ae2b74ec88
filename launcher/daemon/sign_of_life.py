"""``SignOfLife``: timer that a daemon winds up again and again; once it runs out, the guardian ends the daemon."""

from __future__ import annotations

import ctypes
import os
import select
import time
from typing import Final

_SPEC: Final = ctypes.c_long * 4
"""As ``struct itimerspec``: seconds and nanoseconds of the interval, then those until it runs out."""


class SignOfLife:
    """A timer of the kernel (``timerfd``) that both processes hold, since it is made before the fork.

    A daemon that is stopped (SIGSTOP, a debugger) cannot notice that the others have given up its node.  Its guardian
    can, and ends it before another node runs its ranks: a timer of the daemon's own would wait for SIGCONT.

    Raises:
        OSError: the kernel has no descriptor for it.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def fileno(self) -> int:
        """The descriptor, readable as long as the timer has run out and has not been wound up again."""
        return self._fd

    @property
    def has_run_out(self) -> bool:
        return bool(select.select([self._fd], [], [], 0)[0])

    def wind_up(self, seconds: float) -> None:
        """Have it run out so many seconds from now; 0 has it never run out."""
        whole, part = divmod(seconds, 1)
        self._libc.timerfd_settime(self._fd, 0, _SPEC(0, 0, int(whole), int(part * 1e9)), None)
