"""The span log: all operations of one process in a traced run, in memory that its daemon reads.

The memory is the mapping of a file next to the process's ring, so that the daemon can read it after a SIGKILL. Its
layout, little-endian::

    0        header   as in a ring, with the bytes for records in place of slots; the identity as JSON
    4 KiB    words    bytes that have been written so far, and operations that have begun so far, 8 bytes each
    8 KiB    records  the latest records, in msgpack: byte ``n`` of the sequence is at ``n % size``

    begin    [operation, time, kind, name, value, who, more]
    end      [operation, time, failed, call]
    end      [0, time, name, category, who]     of the innermost span of that name

``who`` is the running task (positive), the running thread (negative), or 0 for the main thread. ``more`` holds a span's
category and arguments, or a served call's caller and number. ``call`` is the number of a call that this process has
made.
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

from .event_ring import NAMES_AT, BeginEvent, EndEvent, EventKind, ring_path, write_header

WORDS: Final = struct.Struct("<QQ")
WORDS_AT: Final = NAMES_AT
RECORDS_AT: Final = 2 * NAMES_AT
MAX_RECORD_BYTES: Final = 8192
SUFFIX: Final = ".spans"
_MAX_NAME_CHARS: Final = 200

Writers = tuple[Callable[[], bool], BeginEvent, EndEvent]  # ``admits``, ``begin`` and ``end``

_CALL, _SERVE, _SPAN, _LINE = EventKind.CALL, EventKind.SERVE, EventKind.SPAN, EventKind.LINE


def log_path(logs: str | Path, endpoint: int) -> Path:
    return ring_path(logs, endpoint).with_suffix(SUFFIX)


class SpanLog:
    """A writer of a span log for use in threads and finalizers; it also writes admitted operations to the ring.

    Args:
        buffer: ``RECORDS_AT + size`` bytes, all zero.
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
        # Hold calls weakly, because a call that is never sent, for example because its group has failed, never ends,
        # either.
        self._calls: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<SpanLog [{self._words[1]} begun, {self._words[0]} bytes written]>"

    def begin(self, kind: int, name: str, value: float = 0.0, of: Any = None) -> int:
        """Record an operation's beginning, like ``EventRing.begin``; the number is negative if the ring omits it.

        Args:
            of: for a call, its handle or the served call; for a span, its category, alone or with arguments.
        """
        admits, begin, _ = self.ring
        operation = (begin(kind, name, value) if kind != _LINE and admits() else 0) or next(self._numbers)
        who = 0
        if kind == _CALL:
            self._calls[operation] = of  # the call gets its number when sent, perhaps later
            of = None
        elif kind == _SERVE:
            who = id(of.task) if of.task is not None else 0
            of = (of.source, of.call)
        self._write((operation, self._clock(), kind, name[:_MAX_NAME_CHARS], value, who or self._who(), of), 1)
        return operation

    def enter(self, name: str, category: str, args: dict[str, Any] | None) -> int:
        operation = next(self._numbers)
        self._write((operation, self._clock(), _SPAN, name, 0, self._who(), (category, args)), 1)
        return operation

    def end(self, operation: int, failed: bool | str = False) -> None:
        """Record the end of an operation; ``failed`` may be the name of the error."""
        if operation > 0:
            self.ring[2](operation, failed)
        if (call := self._calls.pop(operation, None)) is not None:
            failed = False  # the failing rank records the failure
        if isinstance(failed, str):
            failed = failed[:_MAX_NAME_CHARS]
        self._write((operation, self._clock(), failed, 0 if call is None else call._call))

    def end_innermost(self, name: str, category: str) -> None:
        self._write((0, self._clock(), name, category, self._who()))

    def _who(self) -> int:
        loop = _get_running_loop()
        if loop is not None and (task := current_task(loop)) is not None:
            return id(task)
        thread = threading.get_ident()
        return 0 if thread == self._main else -thread


def _writer(words: memoryview, records: memoryview, size: int) -> Callable[..., None]:
    """Return ``write(record, begins)``, a closure because attribute look-ups would take a fifth of its time."""
    # Reentrant, because the garbage collector may run a finalizer under the lock, which may end an operation.
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
                # Make no call between these two lines, because a finalizer that runs between them would get the same
                # place.
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
                # Readers must not see an inner record before the outer record is complete.
                if not depth:
                    words[1] = begun
                    words[0] = end

    return write
