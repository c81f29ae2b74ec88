"""Span log: all operations of one process of a traced run, in memory that its daemon reads.

The memory is a file's mapping beside the process's ring, so that the daemon reads it after a SIGKILL as well.  Its
layout, little-endian::

    0        header   as of a ring, whose slots are the bytes for records here; the identity as JSON
    4 KiB    words    bytes that have been written so far, and operations that have begun so far, 8 bytes each
    8 KiB    records  in msgpack, the latest ones: byte ``n`` of all is at ``n % size``

    begin    [operation, time, kind, name, value, who, more]
    end      [operation, time, failed, call]
    end      [0, time, name, category, who]     of the innermost span of that name

``who`` is the running task (positive), the running thread (negative), or 0 for the main thread.  ``more`` is category
and arguments of a span, and caller and number of a call that is run.  ``call`` is the number of a call that was made.
"""

from __future__ import annotations

import itertools
import struct
import threading
import time
import weakref
from asyncio import current_task
from asyncio.events import _get_running_loop
from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from typing import Any, Final

from rlinf_async._core import frames

from .event_ring import NAMES_AT, Begin, End, EventKind, ring_path, write_header

WORDS: Final = struct.Struct("<QQ")
WORDS_AT: Final = NAMES_AT
RECORDS_AT: Final = 2 * NAMES_AT
MAX_RECORD_BYTES: Final = 8192
SUFFIX: Final = ".spans"
_MAX_NAME_CHARS: Final = 200

Writers = tuple[Callable[[], bool], Begin, End]
"""``admits``, ``begin`` and ``end``."""

_CALL, _SERVE, _SPAN, _LINE = EventKind.CALL, EventKind.SERVE, EventKind.SPAN, EventKind.LINE


def log_path(logs: str | Path, endpoint: int) -> Path:
    """The file of a process's span log, beside its ring."""
    return ring_path(logs, endpoint).with_suffix(SUFFIX)


class SpanLog:
    """The writing side, of any thread and of finalizers; it writes to the ring as well what that admits.

    Args:
        buffer: ``RECORDS_AT + size`` bytes, all zero.
        identity: of the process, as that of a ring.
        ring: writes to the ring.

    Attributes:
        run: of which the process is.
    """

    def __init__(
        self,
        buffer: mmap | bytearray,
        identity: dict[str, Any],
        ring: Writers,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.ring = ring
        self.run: str = identity["run"]
        size = len(buffer) - RECORDS_AT
        write_header(buffer, size, identity)
        self._words = memoryview(buffer)[WORDS_AT : WORDS_AT + WORDS.size].cast("Q")
        self._write = _writer(self._words, memoryview(buffer)[RECORDS_AT:], size)
        self._clock = clock
        self._main = threading.main_thread().ident
        self._numbers = itertools.count(-1, -1)
        # Weak: a call that never leaves, as its group has failed, is not ended either.
        self._calls: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<SpanLog [{self._words[1]} begun, {self._words[0]} bytes written]>"

    def begin(self, kind: int, name: str, value: float = 0.0, of: Any = None) -> int:
        """As that of the ring; the number is negative if the ring does not have the operation.

        Args:
            of: the handle of a call that is made, or the call that is run; the category of a span, or with arguments.
        """
        admits, begin, _ = self.ring
        operation = (begin(kind, name, value) if kind != _LINE and admits() else 0) or next(self._numbers)
        who = 0
        if kind == _CALL:
            self._calls[operation] = of  # it gets its number when it leaves, which may be later
            of = None
        elif kind == _SERVE:
            who = id(of.task) if of.task is not None else 0
            of = (of.source, of.call)
        self._write((operation, self._clock(), kind, name[:_MAX_NAME_CHARS], value, who or self._who(), of), 1)
        return operation

    def enter(self, name: str, category: str, args: dict[str, Any] | None) -> int:
        """A span of the user's, which the ring does not have; its number."""
        operation = next(self._numbers)
        self._write((operation, self._clock(), _SPAN, name, 0, self._who(), (category, args)), 1)
        return operation

    def end(self, operation: int, failed: bool | str = False) -> None:
        """The end of an operation; ``failed`` may be the name of the error."""
        if operation > 0:
            self.ring[2](operation, failed)
        if (call := self._calls.pop(operation, None)) is not None:
            failed = False  # ranks fail, of which each says so
        self._write((operation, self._clock(), failed, 0 if call is None else call._call))

    def end_innermost(self, name: str, category: str) -> None:
        """The end of the latest span of that name that was entered here."""
        self._write((0, self._clock(), name, category, self._who()))

    def _who(self) -> int:
        loop = _get_running_loop()
        if loop is not None and (task := current_task(loop)) is not None:
            return id(task)
        thread = threading.get_ident()
        return 0 if thread == self._main else -thread


def _writer(words: memoryview, records: memoryview, size: int) -> Callable[..., None]:
    """``write(record, begins)``: a closure, as look-ups of attributes would be a fifth of its time."""
    # Reentrant: a finalizer that the collector runs in there may end an operation.
    lock, pack = threading.RLock(), frames.new_packer().pack
    depth = end = begun = 0

    def write(record: tuple[Any, ...], begins: int = 0) -> None:
        nonlocal depth, end, begun
        with lock:
            depth += 1
            try:
                data = pack(record)
                nbytes = len(data)
                if nbytes > MAX_RECORD_BYTES:
                    data = pack((*record[:-1], (record[-1][0], {"arguments": "too long for the trace"})))
                    nbytes = len(data)
                # No call between these two lines: a finalizer that comes in behind them has its place behind this one.
                at = end
                end = at + nbytes
                begun += begins
                at %= size
                room = size - at
                if nbytes <= room:
                    records[at : at + nbytes] = data
                else:
                    records[at:] = data[:room]
                    records[: nbytes - room] = data[room:]
            finally:
                depth -= 1
                if not depth:  # a reader must not see the end of an inner record before an outer one is whole
                    words[1] = begun
                    words[0] = end

    return write
