"""``SampleStore``: the samples of a durable experience in an SQLite file, written by a dedicated thread.

The daemon's loop never waits for a disk. It passes changes to the thread, which writes all queued changes in one
transaction and reports them back in order. SQLite preserves everything that a killed process has committed, but does
not wait for the disk (``synchronous=OFF``), so a power failure may lose the last transactions or even the file.

The file is locked while it is open; the kernel releases a killed process's lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rlinf_async._core.frames import MAX_INLINE_BYTES
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.segment import write_segment
from rlinf_async._experience.state.experience_changes import Advance, Change, Drop, Earlier, Insert, Settle
from rlinf_async.errors import ConfigError

from .channel_replies import SegmentFile

logger = own_logger(__name__)

_MAX_CHANGES: Final = 256  # limit per transaction, since changes are reported only after the whole transaction

_LOCK_WAIT_S: Final = 2.0
"""Seconds to wait for a lock still held by a process that was just killed or an experience that was just closed."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS samples (
    place INTEGER PRIMARY KEY, serial INTEGER, key BLOB, name BLOB, version INTEGER, nbytes INTEGER, body BLOB);
CREATE TABLE IF NOT EXISTS counts (what TEXT PRIMARY KEY, number INTEGER);
"""
_ADD: Final = "INSERT INTO counts VALUES (?, ?) ON CONFLICT (what) DO UPDATE SET number = number + excluded.number"
_SET: Final = "INSERT INTO counts VALUES (?, ?) ON CONFLICT (what) DO UPDATE SET number = excluded.number"
_DROPPED: Final = "dropped: "

Row = tuple[int, int, bytes | None, bytes, int, int, Any]
"""Place, group serial, key, name, version, size and body of a sample."""


class SampleStore:
    """Samples of one experience in one file; ``on_written`` receives changes and errors, in order, on the loop."""

    def __init__(
        self,
        path: str,
        owner: str,
        loop: asyncio.AbstractEventLoop,
        on_written: Callable[[list[tuple[Change, Exception | None]]], None],
    ) -> None:
        self._path = path
        self._owner = owner
        self._loop = loop
        self._on_written = on_written
        self._changes: queue.SimpleQueue[Change | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="rlinf-samples", daemon=True)
        self._opened: asyncio.Future[tuple[dict[str, int], list[Row]]] = loop.create_future()

    def __repr__(self) -> str:
        return f"<SampleStore {self._path}>"

    async def open(self) -> tuple[dict[str, int], list[Row]]:
        """Open the file; return an earlier run's counts and samples.  Raises ConfigError if the file is unusable."""
        self._thread.start()
        return await self._opened

    def write(self, change: Change) -> None:
        """Queue a change to be written after earlier changes."""
        self._changes.put(change)

    def close(self) -> None:
        """Queue the file's close after earlier changes, without waiting."""
        self._changes.put(None)

    # -- in the thread ------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            with contextlib.closing(
                sqlite3.connect(self._path, isolation_level=None, timeout=_LOCK_WAIT_S)
            ) as connection:
                self._tell(self._note_open, _read(connection))
                while changes := self._next():
                    self._tell(self._on_written, self._write_all(connection, changes))
        except Exception as error:
            # Every error must reach the loop, which waits for the file to be opened.  Afterwards only ``_write``, which
            # does not raise, reports changes.
            # tests/launcher/daemon/test_sample_store.py::test_what_goes_wrong_in_the_thread_is_told
            self._tell(self._fail_open, error)

    def _tell(self, callback: Callable[[Any], None], argument: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, argument)
        except RuntimeError:
            pass  # the loop is closed because the daemon is shutting down

    def _next(self) -> list[Change]:
        """Wait for changes; return all queued changes, or an empty list at the end."""
        first = self._changes.get()
        changes = [] if first is None else [first]
        while changes and len(changes) < _MAX_CHANGES:
            try:
                following = self._changes.get_nowait()
            except queue.Empty:
                break
            if following is None:
                self._changes.put(None)
                break
            changes.append(following)
        return changes

    def _write_all(
        self, connection: sqlite3.Connection, changes: list[Change]
    ) -> list[tuple[Change, Exception | None]]:
        error = self._write(connection, changes)
        if error is None:
            return [(change, None) for change in changes]
        if len(changes) == 1:
            logger.error("%s", error)
            return [(changes[0], error)]
        # Write each change alone, so that a rejected change does not fail the others.
        return [(change, self._write(connection, [change])) for change in changes]

    def _write(self, connection: sqlite3.Connection, changes: list[Change]) -> Exception | None:
        try:
            connection.execute("BEGIN")
            for change in changes:
                _carry_out(connection, change)
            connection.execute("COMMIT")
        except Exception as error:
            with contextlib.suppress(sqlite3.Error):  # if the rollback fails, the next BEGIN fails and reports it
                connection.rollback()
            return OSError(f"{self._owner} could not write to {self._path}: {error}; make room there")
        return None

    # -- on the loop --------------------------------------------------------------------------------------------

    def _note_open(self, found: tuple[dict[str, int], list[Row]]) -> None:
        if not self._opened.done():
            self._opened.set_result(found)

    def _fail_open(self, error: Exception) -> None:
        why = str(error)
        if "locked" in why:
            why = "it is open already, in another run or in this one: close that experience, or give another path"
        elif "unable to open" in why:
            why = f"{why}: {_lack(self._path)}"
        elif "not a database" in why:
            why = "it is no file of an experience: give the path of a new file"
        if not self._opened.done():
            self._opened.set_exception(ConfigError(f"{self._owner} cannot use durable={self._path!r}: {why}"))


def _lack(path: str) -> str:
    file = Path(path)
    if not file.parent.is_dir():
        return f"there is no folder {file.parent}"
    return "it is a folder: give the path of a file" if file.is_dir() else "this user may not write there"


def _read(connection: sqlite3.Connection) -> tuple[dict[str, int], list[Row]]:
    """Lock the file, create its tables, and read its contents."""
    connection.execute("PRAGMA page_size=16384")  # effective in new files only; samples are larger than usual rows
    connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # must precede WAL, so that other processes cannot even read
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("BEGIN IMMEDIATE")
    for table in _TABLES.split(";"):
        connection.execute(table)
    connection.execute("COMMIT")
    counts = dict(connection.execute("SELECT what, number FROM counts"))
    rows = []
    for *facts, body in connection.execute("SELECT * FROM samples ORDER BY place"):
        large = len(body) > MAX_INLINE_BYTES
        rows.append((*facts, SegmentFile(write_segment([body], len(body)), len(body)) if large else body))
    return counts, rows


def _carry_out(connection: sqlite3.Connection, change: Change) -> None:
    match change:
        case Insert(_, group, sample):
            body = sample.body
            content = _content(body) if isinstance(body, SegmentFile) else body
            connection.execute(
                "INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?)",
                (sample.place, group.serial, group.key, group.name, sample.weight, sample.nbytes, content),
            )
        case Settle(groups):
            places = [sample.place for group in groups for sample in group.samples]
            _remove(connection, places)
            connection.execute(_ADD, ("taken", len(places)))
        case Drop(places, reason):
            _remove(connection, places)
            connection.execute(_ADD, (_DROPPED + reason, len(places)))
        case Advance(version):
            connection.execute(_SET, ("version", version))
        case Earlier(version, taken, dropped):
            reasons = {_DROPPED + reason: count for reason, count in dropped.items()}
            connection.executemany(_SET, {"version": version, "taken": taken, **reasons}.items())


def _remove(connection: sqlite3.Connection, places: list[int]) -> None:
    connection.executemany("DELETE FROM samples WHERE place = ?", [(place,) for place in places])


def _content(segment: SegmentFile) -> bytes:
    parts, offset = [], 0
    while offset < segment.size:
        part = os.pread(segment.fd, segment.size - offset, offset)
        if not part:
            raise OSError(f"a sample of {segment.size} bytes has only {offset}")
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def dropped_of(counts: dict[str, int]) -> dict[str, int]:
    return {name.removeprefix(_DROPPED): count for name, count in counts.items() if name.startswith(_DROPPED)}
