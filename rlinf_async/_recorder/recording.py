"""The flight recorder of this process: its ring, a file next to the logs, and the hooks that write to it.

    attach(directory, identity)      once the daemon has welcomed the process; creates the ring's file there
    if admits():                     for a new operation; ``Work`` itself records its end
        work._event = begin(EventKind.SEND, "send actor:0", 4096)
    detach()                         the process leaves its run

The ring is a file, not anonymous memory, so that it survives a SIGKILL of all processes of a run. It is stored next to
the run's logs, is removed with them, and has a fixed size (``RLINF_RECORDER_EVENTS``). A process that cannot create a
ring records nothing.

In a traced run the process also has a span log in addition to its ring (``trace``). In that case, ``begin`` and ``end``
write to both, and all operations are admitted.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rlinf_async import settings
from rlinf_async._core.own_logger import own_logger
from rlinf_async._recorder.state.call_journal import JOURNAL_BYTES, Finish, JournalContents, Start
from rlinf_async._recorder.state.event_ring import (
    DIRECTORY as DIRECTORY,
    NAMES_AT,
    BeginEvent,
    EndEvent,
    EventKind,
    EventRing,
    MetricKind,
    RingAdmission,
    identity_of,
    ring_path,
    size_of,
)
from rlinf_async._recorder.state.metric_names import cell_name
from rlinf_async._recorder.state.metric_table import WEIGHTS
from rlinf_async._recorder.state.span_log import RECORDS_AT, SpanLog, Writers, log_path

logger = own_logger(__name__)

# Number of rings for which the disk must have room, so that a small disk keeps space for logs and the user's files.
_LEFT_FREE: Final = 20

ring: EventRing | None = None  # this process's ring; None if it records nothing

log: SpanLog | None = None  # this process's span log; None if its run is not traced

_BYTES_PER_SPAN: Final = 128  # a begin takes about 60 bytes and an end 20

_NONE: Final = itertools.repeat(False).__next__
_ALL: Final = itertools.repeat(True).__next__


def _nowhere(kind: int, name: str, value: float = 0.0, of: Any = None) -> int:
    return 0


def _no_end(operation: int, failed: bool | str = False) -> None:
    pass


def _no_start(source: int, call: int) -> int:
    return 0


def _no_finish(place: int) -> None:
    pass


# Hooks that need no intermediate call. They change when the process joins or leaves a run, while other threads may
# begin operations. So look up a hook in this module at every use instead of keeping a copy.

# True if a new operation must be recorded (``RingAdmission.question``).
admits: Callable[[], bool] = _NONE

# ``begin(kind, name, value, of)`` records the beginning of an operation, before anything can end the operation. It
# returns the operation's number, or 0; ``of`` is for the trace (``SpanLog.begin``). A ``Work`` with this number as its
# ``_event`` records its own end.
begin: BeginEvent = _nowhere

# ``end(operation, failed)`` records the end of a numbered operation.
end: EndEvent = _no_end

# ``point(kind, name, value)`` records an event without duration.
point: BeginEvent = _nowhere

# ``start`` and ``finish`` of the ``CallJournal``.
start_call: Start = _no_start
finish_call: Finish = _no_finish

_owner: object = None
_tracer: object = None


def attach(owner: object, logs: str, identity: dict[str, Any]) -> None:
    """Start recording next to ``logs``, once for all of this process's clusters; ``detach`` needs the ``owner``."""
    global ring, point, start_call, finish_call, _owner
    slots = _slots()
    if ring is not None or slots == 0 or not logs:
        return
    path = ring_path(logs, identity["endpoint"])
    try:
        ring = EventRing(_mapping(path, size_of(slots)), slots, identity)
        point, start_call, finish_call = ring.point, ring.journal.start, ring.journal.finish
        _write_to((RingAdmission(slots, ring.left_out).question(), ring.begin, ring.end))
        _owner = owner
    except (OSError, ValueError) as error:  # a full disk or no descriptors; continue without a recorder
        logger.debug("this process has no flight recorder: %s", error)


def trace(owner: object, logs: str, identity: dict[str, Any]) -> None:
    """Start recording this process's operations in a run's trace; one run at a time."""
    global log, admits, begin, end, _tracer
    if log is not None:
        if log.run != identity["run"]:
            logger.warning("this process takes part in two traced runs; its own spans are in the trace of %s", log.run)
        return
    size = RECORDS_AT + int(settings.TRACE_BUFFER_SPANS()) * _BYTES_PER_SPAN
    try:
        log = SpanLog(_mapping(log_path(logs, identity["endpoint"]), size), identity, (admits, begin, end))
        admits, begin, end = _ALL, log.begin, log.end
        _tracer = owner
    except (OSError, ValueError) as error:
        logger.warning("the trace does not show what this process does: %s", error)


def detach(owner: object) -> None:
    """Stop recording, unless another owner has attached; the files stay."""
    # Do not close the mappings, because another thread may be writing an event; they are unmapped with the last
    # reference.
    global ring, log, admits, begin, end, point, start_call, finish_call, _owner, _tracer
    if log is not None and _tracer is owner:
        admits, begin, end = log.ring
        log = _tracer = None
    if _owner is owner:
        _write_to((_NONE, _nowhere, _no_end))
        point, start_call, finish_call = _nowhere, _no_start, _no_finish
        ring = _owner = None


def _write_to(writers: Writers) -> None:
    global admits, begin, end
    if log is None:
        admits, begin, end = writers
    else:
        log.ring = writers


def _forget() -> None:
    detach(_owner)
    detach(_tracer)


os.register_at_fork(after_in_child=_forget)  # parent and child must not share a ring


def _slots() -> int:
    wanted = int(settings.RECORDER_EVENTS())
    return 1 << (wanted - 1).bit_length() if wanted > 0 else 0


def _mapping(path: Path, nbytes: int) -> mmap.mmap:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    disk = os.statvfs(path.parent)
    if disk.f_bavail * disk.f_frsize < _LEFT_FREE * nbytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path.parent))
    path.unlink(missing_ok=True)  # possibly left by an earlier run in this directory
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # Reserve the blocks now, because a write to a mapping on a full disk would raise SIGBUS.
        os.posix_fallocate(fd, 0, nbytes)
        return mmap.mmap(fd, nbytes)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(fd)


def journal_in(logs: str | Path, endpoint: int, run: str) -> JournalContents | None:
    """Return an ended process's call journal; None if the process has left none in this run."""
    try:
        with open(ring_path(logs, endpoint), "rb", buffering=0) as file:
            if identity_of(file.read(NAMES_AT)).get("run") != run:  # a log directory may hold several runs
                return None
            file.seek(-JOURNAL_BYTES, os.SEEK_END)
            return JournalContents(file.read(JOURNAL_BYTES))
    except (OSError, ValueError):
        return None


def version(model: str, role: str, number: int) -> None:
    """Record that this process has ``published`` or ``applied`` weights (``role``), as an event and a metric."""
    current = ring
    if current is not None:
        current.point(EventKind.VERSION, f"{role} {model}", number)
        place = current.cell(MetricKind.GAUGE, cell_name(WEIGHTS.name, {"model": model, "role": role}))
        if place is not None:
            current.store(place, number)
