"""Child processes that no daemon knows, such as data loaders, simulators, and workers that have not joined yet."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from typing import Final

from rlinf_async._inspection.state.run_report import ChildProcess

from .process_state import command_of, stat_of

_STATE, _PARENT, _CPU_TIMES, _START = 0, 1, slice(11, 13), 19
"""Indices of fields in /proc/PID/stat, counted after the program's name."""

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")

_HELPERS: Final = ("rlinf_launcher", "multiprocessing.resource_tracker")
"""Command line parts of helper processes that do not run the script's code: daemons and resource trackers."""


def children_of(known: Collection[int]) -> dict[int, list[ChildProcess]]:
    """Return the live unknown descendants of known processes; scans /proc once."""
    below: dict[int, list[tuple[int, list[str]]]] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):  # noqa: PTH208  Path objects would double the time
        with contextlib.suppress(OSError, IndexError, ValueError):
            stat = stat_of(pid)
            if stat[_STATE] not in ("Z", "X"):
                below.setdefault(int(stat[_PARENT]), []).append((pid, stat))
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return {parent: found for parent in known if (found := _find(parent, below, known, now))}


def _find(
    parent: int, below: dict[int, list[tuple[int, list[str]]]], known: Collection[int], now: float
) -> list[ChildProcess]:
    found: list[ChildProcess] = []
    waiting = [parent]
    while waiting:
        for pid, stat in below.get(waiting.pop(), ()):
            if pid in known or any(word in command_of(pid) for word in _HELPERS):
                continue
            cpu = sum(map(int, stat[_CPU_TIMES])) / _TICKS_PER_S
            found.append(ChildProcess(pid, now - int(stat[_START]) / _TICKS_PER_S, cpu))
            waiting.append(pid)
    return found
