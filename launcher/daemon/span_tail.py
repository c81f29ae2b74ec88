"""``SpanTail``: reads one process's new spans from its span log, while the process writes or after it has ended."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

import msgpack

from rlinf_async._recorder.state.event_ring import HEADER, NAMES_AT, EventKind, identity_of
from rlinf_async._recorder.state.span_log import MAX_RECORD_BYTES, RECORDS_AT, WORDS, WORDS_AT
from rlinf_async._trace.state.tracks import Tracks

_PIECE_BYTES: Final = 1 << 14  # bytes parsed before other tasks of the loop may run; about 200 spans

_OTHER_CLOCK_NS: Final = 500_000_000
"""Clock difference above which a process must have its own monotonic clock (in a time namespace)."""

_SERVE, _SPAN = int(EventKind.SERVE), int(EventKind.SPAN)
_OPERATIONS: Final = {
    int(kind): drawn
    for kind, *drawn in (
        (EventKind.CALL, "", "call", ""), (EventKind.SEND, "", "message", "bytes"),
        (EventKind.RECV, "", "message", "bytes"), (EventKind.LINE, "", "message", "bytes"),
        (EventKind.PUT, "put ", "channel", "bytes"), (EventKind.GET, "get ", "channel", ""),
        (EventKind.WEIGHTS, "weights ", "weights", "version"), (EventKind.WAIT, "", "wait", ""),
    )
}  # fmt: skip
"""Maps each kind to how it is drawn: name prefix, category, and the name of the argument that holds its value."""


class SpanTail:
    """Reader of one process's span log.  Raises OSError, or ValueError if the file is incomplete or not a span log.

    ``shift`` is how many nanoseconds this process's clock is ahead of the other process's clock.  ``has_more`` is True
    if the log has unread spans written before the last ``aim``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with open(path, "rb", buffering=0) as file:
            head = file.read(NAMES_AT)
        self.identity = identity_of(head)
        _, self._size, _, wall_offset = HEADER.unpack_from(head)
        # Compare both monotonic clocks with the machine's wall clock; within one time namespace they agree.
        shift = wall_offset - (time.time_ns() - time.monotonic_ns())
        self.shift = shift if abs(shift) > _OTHER_CLOCK_NS else 0
        self._read = self._begun = self._goal = 0
        self._tracks = Tracks()
        self._unpacker = self._new_unpacker()

    def __repr__(self) -> str:
        return f"<SpanTail of {self.identity.get('process')} [{self._read} bytes read]>"

    @property
    def has_more(self) -> bool:
        return self._read < self._goal

    def aim(self) -> None:
        """Let ``take`` read up to the current end of the log.  Raises ValueError if the file was truncated."""
        with open(self._path, "rb", buffering=0) as file:
            self._goal, _ = self._words(file.fileno())

    def take(self) -> list[Any]:
        """Return new tracks' names, the number of spans lost before the returned ones, and the next spans.

        Raises:
            ValueError, TypeError, KeyError: the records are malformed.
        """
        with open(self._path, "rb", buffering=0) as file:
            dropped = self._take_piece(file.fileno())
        tracks = self._tracks
        spans, tracks.spans = tracks.spans, []
        names, tracks.names = tracks.names, {}
        return [names, dropped, spans]

    def _take_piece(self, fd: int) -> int:
        nbytes = min(_PIECE_BYTES, self._goal - self._read)
        at = self._read % self._size
        piece = _read(fd, min(nbytes, self._size - at), RECORDS_AT + at)
        piece += _read(fd, nbytes - len(piece), RECORDS_AT)
        written, begun = self._words(fd)
        # The record being written is not counted yet and may have overwritten bytes just read.
        if written - self._read > self._size - MAX_RECORD_BYTES:
            dropped = begun - self._begun + self._tracks.abandon()
            self._read, self._begun, self._unpacker = written, begun, self._new_unpacker()
            return dropped
        self._read += len(piece)
        self._unpacker.feed(piece)
        for record in self._unpacker:
            self._add(*record)
        return 0

    def _add(self, operation: int, at: int, *record: Any) -> None:
        tracks = self._tracks
        if not operation:
            name, category, who = record
            tracks.end_innermost(at, who, name, category)
            return
        if len(record) == 2:
            failed, call = record
            args = {"error" if type(failed) is str else "failed": failed} if failed else None
            tracks.end(operation, at, args, (self.identity["endpoint"], call) if call else None)
            return
        self._begun += 1
        kind, name, value, who, more = record
        if kind == _SERVE:
            tracks.begin(operation, at, who, name, "call", None, (*more, 0), entered=True)
        elif kind == _SPAN:
            category, args = more
            tracks.begin(operation, at, who, name, category, args, None, entered=True)
        else:
            prefix, category, unit = _OPERATIONS[kind]
            args = {unit: value} if value and unit else None
            tracks.begin(operation, at, who, prefix + name, category, args, None, entered=False)

    @staticmethod
    def _words(fd: int) -> tuple[int, int]:
        """Return the number of bytes written and the number of operations begun."""
        written, begun = WORDS.unpack(_read(fd, WORDS.size, WORDS_AT))
        return written, begun

    @staticmethod
    def _new_unpacker() -> Any:
        return msgpack.Unpacker(raw=False, strict_map_key=False, unicode_errors="surrogatepass")


def _read(fd: int, nbytes: int, at: int) -> bytes:
    data = os.pread(fd, nbytes, at)
    if len(data) < nbytes:
        raise ValueError(f"the file was cut off: it has {len(data)} of the {nbytes} bytes at {at}")
    return data
