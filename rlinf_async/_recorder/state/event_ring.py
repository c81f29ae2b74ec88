"""The flight recorder's ring: one process's latest events and its metrics, in memory that other processes can read.

The memory is the mapping of a file, so that it outlives the process, however the process ends. Its layout,
little-endian::

    0        header   magic, slots, bytes of the identity, wall clock minus monotonic clock in ns; the identity as JSON
    4 KiB    names    bytes in use, then each name's length (2 bytes) and UTF-8 text; names are referred to by index
    68 KiB   cells    512 metrics: index of the name (4), kind (4), value (8)
    76 KiB   slots    events of 24 bytes: kind, phase, name, operation, value, time; a power of two of them
    end      journal  calls that the process runs (``call_journal.py``)

An operation has a begin event and an end event with the same number; an operation that was running when the process was
killed has only a begin event. ``ring_contents.py`` reads the ring.

    ring = EventRing(bytearray(size_of(1024)), 1024, {"process": "rollout:0"})
    operation = ring.begin(EventKind.SEND, "send actor:0", 4096.0)
    ring.end(operation)
"""

from __future__ import annotations

import itertools
import json
import struct
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from itertools import repeat
from mmap import mmap
from pathlib import Path
from typing import Any, Final, Protocol

from .call_journal import JOURNAL_BYTES, CallJournal

DIRECTORY: Final = "recorder"  # folder of the rings, inside the log directory

MAGIC: Final = b"rlinfFR1"
HEADER: Final = struct.Struct("<8sIIq")
NAMES_AT: Final = 4096
CELLS_AT: Final = NAMES_AT + (64 << 10)
MAX_CELLS: Final = 512
CELL: Final = struct.Struct("<IId")
SLOTS_AT: Final = CELLS_AT + MAX_CELLS * CELL.size
EVENT: Final = struct.Struct("<BBHIdQ")
LENGTH: Final = struct.Struct("<H")
USED: Final = struct.Struct("<I")

# Metric that counts the operations not recorded because too many arrived at once.
SKIPPED: Final = "rlinf_recorder_skipped_operations_total"

MAX_NAME_BYTES: Final = 200

COVERED_S: Final = 30  # minimum seconds that a ring covers, except in a burst

# Number of operations omitted before the clock is read again, because reading it would dominate the cost of each.
_LEFT_OUT: Final = 16

# Number of operations admitted before the clock is read again; with a larger number, a quiet period would count twice.
_MAX_SHARE: Final = 256

OTHER: Final = "(other)"  # name at index 0, which replaces all names that do not fit


class EventKind(IntEnum):
    """The kind of an event, which determines the meaning of its value and its name."""

    # End of an operation; its begin event has the kind and name.
    END = 0
    # Call made by this process; value: number of ranks; name: ``group.method``.
    CALL = 1
    # Call run by this process; name: ``method``.
    SERVE = 2
    # Message to one or several workers; value: bytes; name: ``send actor:0``.
    SEND = 3
    RECV = 4
    # Put into a channel; value: bytes; name: the channel's.
    PUT = 5
    GET = 6
    # Version of weights being sent; value: its number; name: the model's.
    WEIGHTS = 7
    # Any other wait, for example for a lock; name: its kind.
    WAIT = 8
    # User's span, by ``worker_timer``; name: its tag.
    SPAN = 9
    # Weights published or applied; value: the version; name: ``published MODEL`` or ``applied MODEL``.
    VERSION = 10
    # Warning about a long wait; name: the text.
    WORD = 11
    # Internal message, in traces but not in rings; value: bytes; name: ``send actor:0``.
    LINE = 12


class Phase(IntEnum):
    """The position of an event in its operation."""

    BEGIN = 1
    END = 2
    FAILED = 3  # the operation has ended with an error
    POINT = 4  # the event has no duration


class MetricKind(IntEnum):
    GAUGE = 1
    COUNTER = 2


class BeginEvent(Protocol):
    """Records the beginning of an operation, or a point; returns its number. Only a ``SpanLog`` uses ``of``."""

    def __call__(self, kind: int, name: str, value: float = 0.0, of: Any = None) -> int: ...


class EndEvent(Protocol):
    """Records the end of an operation; ``failed`` may be the name of its error."""

    def __call__(self, operation: int, failed: bool | str = False) -> None: ...


def ring_path(logs: str | Path, endpoint: int) -> Path:
    return Path(logs) / DIRECTORY / f"{endpoint:x}.ring"


def size_of(slots: int) -> int:
    return SLOTS_AT + slots * EVENT.size + JOURNAL_BYTES


def write_header(buffer: mmap | bytearray, slots: int, identity: dict[str, Any]) -> None:
    """Write the header of a ring; raise ValueError if the identity is too long."""
    encoded = json.dumps(identity).encode()
    if HEADER.size + len(encoded) > NAMES_AT:
        raise ValueError(f"the identity of a ring has up to {NAMES_AT - HEADER.size} bytes, got {len(encoded)}")
    buffer[HEADER.size : HEADER.size + len(encoded)] = encoded
    HEADER.pack_into(buffer, 0, MAGIC, slots, len(encoded), time.time_ns() - time.monotonic_ns())


def identity_of(head: bytes) -> dict[str, Any]:
    """Return the identity in the first ``NAMES_AT`` bytes of a ring; raise ValueError if they are not a ring."""
    if len(head) < NAMES_AT or not head.startswith(MAGIC):
        raise ValueError("no ring of a flight recorder")
    _, _, nbytes, _ = HEADER.unpack_from(head)
    identity = json.loads(head[HEADER.size : HEADER.size + nbytes])
    if not isinstance(identity, dict):
        raise ValueError(f"a ring's identity is a mapping, this is {identity!r}")
    return identity


class _NameIndex(dict[str, int]):
    """Indices of the names in the ring; looking up a new name adds it, or returns ``OTHER``'s index if it is full."""

    def __init__(self, buffer: mmap | bytearray, lock: threading.RLock) -> None:
        self._buffer, self._lock, self._used = buffer, lock, USED.size

    def __missing__(self, name: str) -> int:
        told = name.encode(errors="replace")[:MAX_NAME_BYTES]
        with self._lock:
            known = self.get(name)
            if known is not None:
                return known
            end = self._used + LENGTH.size + len(told)
            if end > CELLS_AT - NAMES_AT or len(self) > 0xFFFF:
                return 0
            index = self[name] = len(self)
            at = NAMES_AT + self._used
            self._used = end
            LENGTH.pack_into(self._buffer, at, len(told))
            self._buffer[at + LENGTH.size : NAMES_AT + end] = told
            # Store the total last, so that readers see only whole names.
            USED.pack_into(self._buffer, NAMES_AT, end)
        return index


class EventRing:
    """A writer of a ring for use in threads and finalizers; it takes no lock except for new names, and never fails.

    Args:
        buffer: ``size_of(slots)`` bytes, all zero.
        slots: number of kept events; raises ValueError if this is not a power of two.
        identity: identity of the process, as JSON; raises ValueError if this is longer than 4000 bytes.
        clock: returns nanoseconds.

    Attributes:
        begin: ``begin(kind, name, value)`` records the beginning of an operation. Returns its number, never 0.
        end: ``end(operation, failed)`` records the end of an operation.
        point: ``point(kind, name, value)`` records an event. Returns its number.
    """

    def __init__(
        self,
        buffer: mmap | bytearray,
        slots: int,
        identity: dict[str, Any],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if slots < 1 or slots & (slots - 1):
            raise ValueError(f"a ring has a power of two of slots, got {slots}")
        write_header(buffer, slots, identity)
        self._buffer = buffer
        self._slots = slots
        # Reentrant, because the garbage collector may run a finalizer under the lock, which may record an event with a
        # new name.
        self._lock = threading.RLock()
        self._names = _NameIndex(buffer, self._lock)
        self._cells: dict[str, int] = {}
        # A memoryview store of eight aligned bytes is atomic; pack_into would first clear them, visibly to readers.
        self._values = memoryview(buffer)[CELLS_AT:SLOTS_AT].cast("d")
        assert self._names[OTHER] == 0
        self.begin, self.end, self.point = _writers(buffer, slots, self._names, clock)
        self.journal = CallJournal(memoryview(buffer)[SLOTS_AT + slots * EVENT.size :])

    def __repr__(self) -> str:
        return f"<EventRing [{self._slots} slots, {len(self._names)} names, {len(self._cells)} metrics]>"

    def left_out(self, count: int) -> None:
        if (place := self.cell(MetricKind.COUNTER, SKIPPED)) is not None:
            self.store(place, count)

    # -- metrics ------------------------------------------------------------------------------------------------

    def cell(self, kind: MetricKind, name: str) -> int | None:
        """Return the place of the value of a metric, named in Prometheus notation; None if there is no room for it."""
        place = self._cells.get(name)
        if place is None:
            with self._lock:
                number = len(self._cells)
                if name not in self._cells:
                    # A name that was cut would lack labels, and one such metric would spoil all metrics of the run.
                    is_whole = len(name.encode(errors="replace")) <= MAX_NAME_BYTES
                    if not is_whole or number == MAX_CELLS or (index := self._names[name]) == 0:
                        return None
                    CELL.pack_into(self._buffer, CELLS_AT + number * CELL.size, index, kind, 0.0)
                    self._cells[name] = number * 2 + 1  # the index of the value in words of 8 bytes
                place = self._cells[name]
        return place

    def store(self, place: int, value: float) -> None:
        """Set the value at a place from ``cell``; raise TypeError, or the conversion's error, for a non-number."""
        self._values[place] = value

    def add(self, place: int, amount: float) -> None:
        with self._lock:
            self._values[place] += amount


def _writers(
    buffer: mmap | bytearray, slots: int, names: _NameIndex, clock: Callable[[], int]
) -> tuple[BeginEvent, EndEvent, BeginEvent]:
    """Return ``begin``, ``end`` and ``point`` as closures, because methods would take a fifth more time per event."""
    # Numbers begin at 1, because 0 means no operation.
    number, pack, mask = itertools.count(1).__next__, EVENT.pack_into, slots - 1

    # pack_into writes the time last: if the process is killed inside it, the slot keeps the ring's oldest time, and
    # readers skip the oldest events.

    def begin(kind: int, name: str, value: float = 0.0, of: Any = None) -> int:
        operation = number()
        at = SLOTS_AT + (operation & mask) * 24
        pack(buffer, at, kind, 1, names[name], operation & 0xFFFFFFFF, value, clock())
        return operation

    def end(operation: int, failed: bool | str = False) -> None:
        at = SLOTS_AT + (number() & mask) * 24
        pack(buffer, at, 0, 3 if failed else 2, 0, operation & 0xFFFFFFFF, 0.0, clock())

    def point(kind: int, name: str, value: float = 0.0, of: Any = None) -> int:
        operation = number()
        at = SLOTS_AT + (operation & mask) * 24
        pack(buffer, at, kind, 4, names[name], operation & 0xFFFFFFFF, value, clock())
        return operation

    return begin, end, point


class RingAdmission:
    """Limits the number of recorded operations, so that a ring covers half a minute at any rate.

    Operations beyond ``slots / 2`` in ``COVERED_S`` (1092 a second for 65536 slots) and a burst of ``slots / 128`` are
    left out and counted. A token bucket that hands out shares; ``left_out`` gets the number of omitted operations;
    ``clock`` is in ns::

        admits = RingAdmission(65536, left_out).question()
        if admits():                    # a tenth of a microsecond at a high rate
            ring.begin(...)
    """

    def __init__(
        self, slots: int, left_out: Callable[[int], None], clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._burst = max(1, slots // 128)
        self._interval_ns = COVERED_S * 1_000_000_000 * 2 // slots or 1
        self._report_left_out = left_out
        self._clock = clock
        self._left_out = 0
        # Time up to which admissions have been granted; a value one burst before now means a full bucket.
        self._given_until = clock() - self._burst * self._interval_ns

    def __repr__(self) -> str:
        return f"<RingAdmission [{1_000_000_000 // self._interval_ns} a second, {self._left_out} left out]>"

    def question(self) -> Callable[[], bool]:
        """Return a function to call once per new operation; true if the operation must be recorded.

        Any thread or finalizer may call it. Concurrent threads may get the same share twice.
        """
        answers: Callable[[], bool] = iter(()).__next__

        # Do not use ``itertools.chain``: a signal handler that raises in ``_hand_out`` would end it for ever, and
        # each later operation would fail with StopIteration.
        def admits() -> bool:
            nonlocal answers
            try:
                return answers()
            except StopIteration:
                pass
            is_admitted, count = self._hand_out()
            answers = repeat(is_admitted, count - 1).__next__  # another thread may use them up before the next line
            return is_admitted

        return admits

    def _hand_out(self) -> tuple[bool, int]:
        now = self._clock()
        self._given_until = max(self._given_until, now - self._burst * self._interval_ns)
        share = min((now - self._given_until) // self._interval_ns, _MAX_SHARE)
        if share < 1:
            self._left_out += _LEFT_OUT
            return False, _LEFT_OUT
        self._given_until += share * self._interval_ns
        if self._left_out:
            self._report_left_out(self._left_out)
        return True, share
