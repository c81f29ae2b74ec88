"""Why a process ended, in words."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Verdict:
    """The end of a process: an exit code or a signal, and whether memory was the reason."""

    exit_code: int | None = None
    signal: str | None = None
    out_of_memory: bool = False

    @property
    def text(self) -> str:
        if self.signal is None:
            return f"exited with code {self.exit_code}"
        if self.out_of_memory:
            return f"was killed by {self.signal} (out of memory: the kernel's count of OOM kills rose)"
        return f"was killed by {self.signal}"


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since boot."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def reap(pidfd: int, oom_kills_before: int) -> Verdict | None:
    """The verdict on a child that has ended; None while it lives."""
    result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    if result is None:
        return None
    if result.si_code == os.CLD_EXITED:
        return Verdict(exit_code=result.si_status)
    name = _signal_name(result.si_status)
    killed_for_memory = name == "SIGKILL" and oom_kills() > oom_kills_before
    return Verdict(signal=name, out_of_memory=killed_for_memory)


def verdict_of(status: int) -> Verdict:
    """The verdict that a wait status stands for."""
    if os.WIFSIGNALED(status):
        return Verdict(signal=_signal_name(os.WTERMSIG(status)))
    return Verdict(exit_code=os.waitstatus_to_exitcode(status))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
