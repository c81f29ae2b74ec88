"""``ExitStatus`` of a process reaped through its pidfd: exit code, signal or out-of-memory kill, as text."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from .oom import MemoryKills, explain_kill


@dataclass(frozen=True)
class ExitStatus:
    """The end of a process: an exit code, or a signal and the memory shortage, if any, that caused it."""

    exit_code: int | None = None
    signal: str | None = None
    memory: str = ""

    @property
    def text(self) -> str:
        if self.signal is None:
            return f"exited with code {self.exit_code}"
        return f"was killed by {self.signal}" + (f" ({self.memory})" if self.memory else "")


def reap(pidfd: int, at_start: MemoryKills) -> ExitStatus | None:
    """Return an ended child's exit status; None while it is alive."""
    result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    if result is None:
        return None
    if result.si_code == os.CLD_EXITED:
        return ExitStatus(exit_code=result.si_status)
    name = _signal_name(result.si_status)
    return ExitStatus(signal=name, memory=explain_kill(result.si_pid, at_start) if name == "SIGKILL" else "")


def exit_status_of(status: int) -> ExitStatus:
    if os.WIFSIGNALED(status):
        return ExitStatus(signal=_signal_name(os.WTERMSIG(status)))
    return ExitStatus(exit_code=os.waitstatus_to_exitcode(status))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
