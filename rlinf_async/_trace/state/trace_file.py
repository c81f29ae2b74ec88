"""Writes a trace in Chrome's format (for Perfetto): all processes' spans, arrows for calls; valid JSON at any time.

Each addition overwrites the document's end and rewrites that end in the same system call. So a reader always finds a
complete document, even after all processes have died. A SIGKILL during a write cuts it at a page boundary, leaving a
partial last line and no end, which trace viewers accept.
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

# Maximum number of calls whose other end has not been seen yet; beyond this, the oldest get no arrow.
MAX_OPEN_ARROWS: Final = 1 << 14

_END: Final = b"\n]}\n"

Caller = tuple[int, int]  # the caller's endpoint, and its number for the call


@dataclass(frozen=True)
class TracedProcess:
    """A process in the trace: endpoint, display name (``rollout:3``), machine, and process id on the machine."""

    endpoint: int
    name: str
    node: str
    pid: int


@dataclass(frozen=True)
class _CallPlace:
    """One end of a call: process, track, and begin and end in nanoseconds of the trace."""

    process: int
    track: int
    begin: int
    end: int


class TraceFile:
    """A growing trace file, which is not thread-safe.

    Args:
        path: path of the file, which is replaced; its folder is created. Raises OSError if it cannot be written.
        began: time zero of the trace, in nanoseconds on the clock to which all times are converted.
        about: plain data to store with the trace.
    """

    def __init__(self, path: str | Path, began: int, about: Mapping[str, Any]) -> None:
        self.path = Path(path).absolute()
        self._began = began
        self._processes: dict[int, int] = {}
        self._callers: OrderedDict[Caller, _CallPlace] = OrderedDict()
        self._waiting: OrderedDict[Caller, list[_CallPlace]] = OrderedDict()
        self._arrows = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        head = json.dumps({"displayTimeUnit": "ms", "otherData": dict(about)})[:-1] + ', "traceEvents": ['
        self._size = 0
        self._is_empty = True
        try:
            self._put(head.encode())
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<TraceFile {self.path} [{len(self._processes)} processes, {self._arrows} arrows, {self._size} bytes]>"

    def add(
        self,
        process: TracedProcess,
        tracks: Mapping[int, str],
        events: Sequence[DrawnSpan],
        dropped: int = 0,
        *,
        shift: int = 0,
        clock: ClockOffset | None = None,
    ) -> None:
        """Add spans of one process.

        Args:
            tracks: names of new tracks.
            dropped: number of spans missing before these.
            shift: nanoseconds to add to the process's times to get its machine's times.
            clock: offset of its machine's clock; None for the machine whose clock the trace uses.

        Raises:
            OSError: a write has failed, for example on a full disk; earlier additions are intact.
            TypeError, ValueError, IndexError: the data is not a batch of spans, and nothing was written.
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
                lines += self._connect(_CallPlace(number, track, begin, end), name, flow)
        if dropped:
            lines.append(
                f'{{"ph":"i","s":"p","name":"{dropped:d} spans are missing here","cat":"tracer","pid":{number},'
                f'"tid":1,"ts":{begin / 1e3:.3f}}}'
            )
        self._append(lines)
        self._processes[process.endpoint] = number

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # -- arrows -------------------------------------------------------------------------------------------------

    def _connect(self, place: _CallPlace, name: str, flow: Sequence[int]) -> list[str]:
        """Return the arrows that are now complete; ``flow`` is ``[endpoint, call]``, with a slot for a callee."""
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

    def _arrow(self, start: _CallPlace, end: _CallPlace, name: str) -> list[str]:
        # Because of the clocks' remaining error, a callee may seem to begin before its caller.
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


def _introduce(number: int, process: TracedProcess) -> list[str]:
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
    """Return the beginning of a span's JSON for a name and category."""
    if type(name) is not str or type(category) is not str:
        raise TypeError(f"a span is called {name!r} in {category!r}")
    return f'{{"ph":"X","name":{json.dumps(name)},"cat":{json.dumps(category)},"pid":'


def _shown(args: Mapping[str, Any] | None) -> str:
    if not args:
        return ""
    if len(args) == 1:  # the usual case: a size in bytes
        ((name, value),) = args.items()
        if type(value) is int and type(name) is str:
            return f',"args":{{{_quoted(name)}:{value}}}'
    return f',"args":{json.dumps(args, allow_nan=False)}'
