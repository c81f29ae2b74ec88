"""Writer of a trace in Chrome's format (Perfetto): spans of all processes, call arrows; whole JSON at any time.

What is added replaces the end of the document, and brings that end along in the same write.  So whoever reads the file,
or finds it after all have died, has a document that is complete as far as it goes.  A SIGKILL in the midst of a write
cuts it at a page's border: then the last line is not whole and the end is missing, which viewers of traces admit.
"""

from __future__ import annotations

import errno
import json
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from rlinf_async._trace.state.clocks import ClockOffset
from rlinf_async._trace.state.tracks import DrawnSpan

MAX_OPEN_ARROWS: Final = 1 << 14
"""Calls whose other end is awaited; the oldest beyond get no arrow."""

_END: Final = b"\n]}\n"

Caller = tuple[int, int]
"""Endpoint and number of a call."""


@dataclass(frozen=True)
class Process:
    """A process of the trace.

    Attributes:
        endpoint: its id in the run.
        name: as people call it, such as ``rollout:3``.
        node: the name of its machine.
        pid: its process id there.
    """

    endpoint: int
    name: str
    node: str
    pid: int


@dataclass(frozen=True)
class _Place:
    """One end of a call: process and track, and when it began and ended there, in nanoseconds of the trace."""

    process: int
    track: int
    begin: int
    end: int


class TraceFile:
    """The file, as it grows.  Not thread-safe.

    Args:
        path: replaced where it exists; its folder is made.
        began: time zero of the trace, in nanoseconds of the clock to which all times are brought.
        about: plain data that is kept with the trace.

    Raises:
        OSError: it cannot be written there.
    """

    def __init__(self, path: str | Path, began: int, about: Mapping[str, Any]) -> None:
        self.path = Path(path).absolute()
        self._began = began
        self._processes: dict[int, int] = {}
        self._callers: OrderedDict[Caller, _Place] = OrderedDict()
        self._waiting: OrderedDict[Caller, list[_Place]] = OrderedDict()
        self._arrows = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        head = json.dumps({"displayTimeUnit": "ms", "otherData": dict(about)})[:-1] + ', "traceEvents": ['
        self._size = 0
        self._is_empty = True
        self._put(head.encode())

    def __repr__(self) -> str:
        return f"<TraceFile {self.path} [{len(self._processes)} processes, {self._arrows} arrows, {self._size} bytes]>"

    def add(
        self,
        process: Process,
        tracks: Mapping[int, str],
        events: Sequence[DrawnSpan],
        dropped: int = 0,
        *,
        shift: int = 0,
        clock: ClockOffset | None = None,
    ) -> None:
        """Spans of one process.

        Args:
            tracks: names of those that have not been named before.
            dropped: spans that are missing before these.
            shift: nanoseconds by which the clock of its machine is ahead of its own.
            clock: of its machine; None where that is the machine whose clock the trace has.

        Raises:
            OSError: the disk is full, for one; what was written before is whole.
            TypeError, ValueError, IndexError: that is no batch of spans; nothing of it is in the file.
        """
        lines: list[str] = []
        begin = 0
        number = self._processes.get(process.endpoint, 0)
        if not number:
            number = len(self._processes) + 1
            lines += _introduce(number, process)
        for track, name in tracks.items():
            lines.append(_metadata(number, "thread_name", {"name": str(name)}, int(track)))
            lines.append(_metadata(number, "thread_sort_index", {"sort_index": int(track)}, int(track)))
        zero = shift - self._began
        for track, since, until, name, category, args, flow in events:
            if clock is None:
                begin, end = since + zero, until + zero
            else:
                begin = clock.to_ours(since + shift) - self._began
                end = clock.to_ours(until + shift) - self._began
            lines.append(
                f'{_kind(name, category)}{number},"tid":{track:d},"ts":{begin / 1e3:.3f},'
                f'"dur":{(end - begin) / 1e3:.3f}{_shown(args)}}}'
            )
            if flow:
                lines += self._connect(_Place(number, track, begin, end), name, flow)
        if dropped:
            lines.append(
                f'{{"ph":"i","s":"p","name":"{dropped:d} spans are missing here","cat":"tracer","pid":{number},'
                f'"tid":1,"ts":{begin / 1e3:.3f}}}'
            )
        self._append(lines)
        self._processes[process.endpoint] = number

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # -- arrows -------------------------------------------------------------------------------------------------

    def _connect(self, place: _Place, name: str, flow: Sequence[int]) -> list[str]:
        """The arrows that are complete now.  ``flow`` is ``[endpoint, call]`` of a caller, with a slot of a callee."""
        caller = (flow[0], flow[1])
        if len(flow) > 2:
            start = self._callers.get(caller)
            if start is not None:
                return self._arrow(start, place, name)
            self._waiting.setdefault(caller, []).append(place)
            _shorten(self._waiting)
            return []
        self._callers[caller] = place
        _shorten(self._callers)
        return [line for callee in self._waiting.pop(caller, ()) for line in self._arrow(place, callee, name)]

    def _arrow(self, start: _Place, end: _Place, name: str) -> list[str]:
        # By what is left of an error in the clocks a callee may seem to begin before its caller.
        at = max(start.begin, end.begin)
        if at > end.end:
            return []
        self._arrows += 1
        return [
            f'{{"ph":"{phase}","id":{self._arrows},"name":{_quoted(name)},"cat":"call","pid":{place.process},'
            f'"tid":{place.track},"ts":{when / 1e3:.3f}{more}}}'
            for phase, place, when, more in (("s", start, start.begin, ""), ("f", end, at, ',"bp":"e"'))
        ]

    # -- the document -------------------------------------------------------------------------------------------

    def _append(self, lines: Iterable[str]) -> None:
        text = ",\n".join(lines)
        if text:
            self._put((("\n" if self._is_empty else ",\n") + text).encode())
            self._is_empty = False

    def _put(self, data: bytes) -> None:
        whole = data + _END
        written = os.pwrite(self._fd, whole, self._size)
        if written < len(whole):
            os.pwrite(self._fd, _END, self._size)
            os.ftruncate(self._fd, self._size + len(_END))
            raise OSError(errno.ENOSPC, f"{self.path} has no room for {len(data)} more bytes")
        self._size += len(data)


def _introduce(number: int, process: Process) -> list[str]:
    name = f"{process.name} ({process.node}, pid {process.pid})"
    order = (process.endpoint >> 32) * 100_000 + (process.endpoint & 0xFFFF)
    return [
        _metadata(number, "process_name", {"name": name}),
        _metadata(number, "process_labels", {"labels": process.node}),
        _metadata(number, "process_sort_index", {"sort_index": order}),
    ]


def _metadata(process: int, name: str, args: Mapping[str, Any], track: int = 0) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": process, "tid": track, "args": args}, separators=(",", ":"))


def _shorten(table: OrderedDict[Caller, Any]) -> None:
    if len(table) > MAX_OPEN_ARROWS:
        table.popitem(last=False)


@lru_cache(maxsize=4096)
def _quoted(text: str) -> str:
    return json.dumps(text)


@lru_cache(maxsize=4096)
def _kind(name: str, category: str) -> str:
    """How spans of that name begin."""
    if type(name) is not str or type(category) is not str:
        raise TypeError(f"a span is called {name!r} in {category!r}")
    return f'{{"ph":"X","name":{json.dumps(name)},"cat":{json.dumps(category)},"pid":'


def _shown(args: Mapping[str, Any] | None) -> str:
    if not args:
        return ""
    if len(args) == 1:  # most often so many bytes
        ((name, value),) = args.items()
        if type(value) is int and type(name) is str:
            return f',"args":{{{_quoted(name)}:{value}}}'
    return f',"args":{json.dumps(args, allow_nan=False)}'
