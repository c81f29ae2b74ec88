"""``SignOfLife``: timer that a daemon winds up repeatedly; when it runs out, the guardian kills the daemon."""

from __future__ import annotations

import ctypes
import os
import select
import time
from typing import Final

_SPEC: Final = ctypes.c_long * 4
"""Type of ``struct itimerspec``: seconds and nanoseconds of the interval, then those until it runs out."""


class SignOfLife:
    """A kernel timer (``timerfd``) that daemon and guardian share, because it is created before the fork.

    A stopped daemon (SIGSTOP, a debugger) cannot notice that the others have declared its node lost.  Its guardian can,
    and kills it before another node runs its ranks; a timer of the daemon itself would wait for SIGCONT.

    Raises:
        OSError: the kernel has no free descriptor.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def fileno(self) -> int:
        """Return the descriptor, which is readable from the timer's expiry to the next ``wind_up``."""
        return self._fd

    @property
    def has_run_out(self) -> bool:
        return bool(select.select([self._fd], [], [], 0)[0])

    def wind_up(self, seconds: float) -> None:
        """Restart the timer with that many seconds; 0 disarms it."""
        whole, part = divmod(seconds, 1)
        self._libc.timerfd_settime(self._fd, 0, _SPEC(0, 0, int(whole), int(part * 1e9)), None)
