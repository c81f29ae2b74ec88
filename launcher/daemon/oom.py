"""Out-of-memory diagnosis of a SIGKILL, with evidence from the kernel's log, or from cgroup and machine counters.

The kernel's log names the killed process, and is decisive if it is readable and goes back far enough.  A cgroup's
counter says only that *some* process in the cgroup was killed, so each counted kill explains one death. The machine's
counter is not evidence, but only a hint.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

KERNEL_LOG: Final = Path("/dev/kmsg")
CGROUPS: Final = Path("/sys/fs/cgroup")

# The initial pid namespace (PROC_PID_INIT_INO), to which the pids in the kernel's log belong.
_INITIAL_PIDS: Final = "pid:[4026531836]"
_CLOCK_SLACK_S: Final = 0.1  # maximum difference between the kernel log's clock and the monotonic clock

_KILLED: Final = re.compile(rb"^\d+,\d+,(\d+),[^;]*;.*Killed process (\d+) ", re.MULTILINE)
_RECORD: Final = re.compile(rb"^\d+,\d+,(\d+),", re.MULTILINE)

_explained = 0  # number of kills in the cgroup's counter that already explain a death


@dataclass(frozen=True)
class MemoryKills:
    """Counts of memory kills when a process started; None if a counter is unreadable."""

    when: float
    cgroup: int | None
    explained: int
    machine: int | None

    @classmethod
    def count(cls) -> MemoryKills:
        return cls(time.monotonic(), _count(_cgroup_counter()), _explained, _count(Path("/proc/vmstat")))


def explain_kill(pid: int, at_start: MemoryKills) -> str:
    """Explain a SIGKILL as an out-of-memory kill; return an empty string if the kernel did not send the signal."""
    global _explained
    if (logged := _is_in_kernel_log(pid, at_start.when)) is not None:
        return "out of memory, as the kernel's log says" if logged else ""
    now = MemoryKills.count()
    if at_start.cgroup is not None and now.cgroup is not None:
        if now.cgroup - at_start.cgroup <= _explained - at_start.explained:
            return ""
        _explained += 1
        return "out of memory: the kernel killed a process of its cgroup for that"
    kills = (now.machine or 0) - (at_start.machine or 0)
    if kills <= 0:
        return ""
    processes = "1 process" if kills == 1 else f"{kills} processes"
    return f"possibly out of memory: the kernel has killed {processes} of this machine for that since it started"


def _is_in_kernel_log(pid: int, since: float) -> bool | None:
    """True if the log names the process since ``since``; None if it is unreadable, uses other pids, or starts later."""
    try:
        if str(Path("/proc/self/ns/pid").readlink()) != _INITIAL_PIDS:
            return None
    except OSError:  # a kernel or a sandbox without namespaces
        return None
    records = _read_kernel_log()
    oldest = _RECORD.search(records)
    if oldest is None:
        return None
    for when, named in _KILLED.findall(records):
        if int(named) == pid and int(when) / 1e6 > since - _CLOCK_SLACK_S:
            return True
    return False if int(oldest[1]) / 1e6 < since else None


def _read_kernel_log() -> bytes:
    pieces = []
    with contextlib.suppress(OSError):
        descriptor = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            while True:
                with contextlib.suppress(BrokenPipeError):  # the oldest records were overwritten during the read
                    if not (piece := os.read(descriptor, 8192)):
                        break
                    pieces.append(piece)
        except BlockingIOError:  # end of the log
            pass
        finally:
            os.close(descriptor)
    return b"".join(pieces)


@functools.cache
def _cgroup_counter() -> Path | None:
    """Return the file that counts kills in this process's memory cgroup, which its workers share."""
    lines = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text()
    for line in lines.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            places = [CGROUPS / path.strip("/") / name for name in ("memory.events.local", "memory.events")]
        elif "memory" in controllers.split(","):
            places = [CGROUPS / "memory" / path.strip("/") / "memory.oom_control"]
        else:
            continue
        for place in places:
            if _count(place) is not None:
                return place
    return None


def _count(path: Path | None) -> int | None:
    if path is not None:
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return None
