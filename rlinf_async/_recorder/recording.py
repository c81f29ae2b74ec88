"""This process's part of the flight recorder: its ring, a file beside the logs, and the hooks that write to it.

    attach(directory, identity)      once the daemon has welcomed the process; the ring is a file there
    if admits():                     an operation that begins now; ``Work`` itself tells of its end
        work._event = begin(EventKind.SEND, "send actor:0", 4096)
    detach()                         the process leaves its run

The ring is a file and no anonymous memory, so that it is there after a SIGKILL of every process of a run.  It lies with
the run's logs, is removed with them, and is of a fixed size (``RLINF_RECORDER_EVENTS``).  A process that cannot have
one goes without.

In a traced run the process has a span log beside its ring as well (``trace``).  The same ``begin`` and ``end`` write to
both then, and all operations are admitted.
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
    Begin,
    End,
    EventKind,
    EventRing,
    MetricKind,
    identity_of,
    ring_path,
    size_of,
)
from rlinf_async._recorder.state.metric_names import cell_name
from rlinf_async._recorder.state.metric_table import WEIGHTS
from rlinf_async._recorder.state.ring_admission import Admission
from rlinf_async._recorder.state.span_log import RECORDS_AT, SpanLog, Writers, log_path

logger = own_logger(__name__)

_LEFT_FREE: Final = 20
"""Rings for which there must be room, so that many processes leave some of a small disk to the logs and the user."""

ring: EventRing | None = None
"""Of this process; None where it records nothing."""

log: SpanLog | None = None
"""The span log of this process; None where its run is not traced."""

_BYTES_PER_SPAN: Final = 128
"""Room in the span log: a begin takes about 60 bytes and an end 20."""

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


# What writes to the ring, without a call in between; they change when the process joins or leaves a run only, so each
# is looked up here when it is needed: an operation may begin in one thread while another one leaves the run.

admits: Callable[[], bool] = _NONE
"""Whether an operation that begins now is to be recorded: ``Admission.question``."""

begin: Begin = _nowhere
"""``begin(kind, name, value, of)``: records an operation that begins now, before anything may settle it; its number, or
0; ``of`` is told to the trace (``SpanLog.begin``).  A ``Work`` that has it as its ``_event`` records its own end."""

end: End = _no_end
"""``end(operation, failed)``: records the end of an operation that has a number."""

point: Begin = _nowhere
"""``point(kind, name, value)``: records something that has happened."""

start_call: Start = _no_start
finish_call: Finish = _no_finish
"""Those of the ``CallJournal``."""

_owner: object = None
_tracer: object = None
"""The owners of the ring and of the span log."""


def attach(owner: object, logs: str, identity: dict[str, Any]) -> None:
    """Has this process record; once for all of its clusters, the first of which counts.

    Args:
        owner: what ``detach`` is told.
        logs: directory of the run's logs on this machine.
        identity: see ``RingContents``.
    """
    global ring, point, start_call, finish_call, _owner
    slots = _slots()
    if ring is not None or slots == 0 or not logs:
        return
    path = ring_path(logs, identity["endpoint"])
    try:
        ring = EventRing(_mapping(path, size_of(slots)), slots, identity)
        point, start_call, finish_call = ring.point, ring.journal.start, ring.journal.finish
        _write_to((Admission(slots, ring.left_out).question(), ring.begin, ring.end))
        _owner = owner
    except (OSError, ValueError) as error:  # a full disk, no descriptors: the run goes on
        logger.debug("this process has no flight recorder: %s", error)


def trace(owner: object, logs: str, identity: dict[str, Any]) -> None:
    """Has the trace of a run show what this process does from now on; of one run at a time."""
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
    """Records nothing more; what there is stays.  Only what has attached detaches."""
    # The mappings are not closed: another thread may be within an event.  They end with the last reference.
    global ring, log, admits, begin, end, point, start_call, finish_call, _owner, _tracer
    if log is not None and _tracer is owner:
        admits, begin, end = log.ring
        log = _tracer = None
    if _owner is owner:
        _write_to((_NONE, _nowhere, _no_end))
        point, start_call, finish_call = _nowhere, _no_start, _no_finish
        ring = _owner = None


def _write_to(writers: Writers) -> None:
    """Has operations recorded by these, by way of the span log where that is."""
    global admits, begin, end
    if log is None:
        admits, begin, end = writers
    else:
        log.ring = writers


def _forget() -> None:
    detach(_owner)
    detach(_tracer)


os.register_at_fork(after_in_child=_forget)  # else both would write to one ring


def _slots() -> int:
    wanted = int(settings.RECORDER_EVENTS())
    return 1 << (wanted - 1).bit_length() if wanted > 0 else 0


def _mapping(path: Path, nbytes: int) -> mmap.mmap:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    disk = os.statvfs(path.parent)
    if disk.f_bavail * disk.f_frsize < _LEFT_FREE * nbytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path.parent))
    path.unlink(missing_ok=True)  # of an earlier run, in a directory that the user has chosen for several
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # Blocks that are reserved now: a write to a mapping of a disk that has become full is a SIGBUS.
        os.posix_fallocate(fd, 0, nbytes)
        return mmap.mmap(fd, nbytes)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(fd)


def journal_in(logs: str | Path, endpoint: int, run: str) -> JournalContents | None:
    """The journal of the calls of a process that has ended; None where it has left none in this run."""
    try:
        with open(ring_path(logs, endpoint), "rb", buffering=0) as file:
            if identity_of(file.read(NAMES_AT)).get("run") != run:  # a directory of logs for several runs
                return None
            file.seek(-JOURNAL_BYTES, os.SEEK_END)
            return JournalContents(file.read(JOURNAL_BYTES))
    except (OSError, ValueError):
        return None


def version(model: str, role: str, number: int) -> None:
    """Records weights that this process has published or applied, as an event and as a metric.

    Args:
        role: ``published`` or ``applied``.
    """
    here = ring
    if here is not None:
        here.point(EventKind.VERSION, f"{role} {model}", number)
        place = here.cell(MetricKind.GAUGE, cell_name(WEIGHTS.name, {"model": model, "role": role}))
        if place is not None:
            here.store(place, number)
