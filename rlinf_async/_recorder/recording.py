"""This process's part of the flight recorder: its ring, a file beside the logs, and the hooks that write to it.

    attach(directory, identity)      once the daemon has welcomed the process; the ring is a file there
    follow(work, EventKind.SEND, "send actor:0", 4096)    an operation that begins now; ``Work`` itself tells of its end
    detach()                         the process leaves its run

The ring is a file and no anonymous memory, so that it is there after a SIGKILL of every process of a run.  It lies with
the run's logs, is removed with them, and is of a fixed size (``RLINF_RECORDER_EVENTS``).  A process that cannot have
one goes without.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from rlinf_async import settings
from rlinf_async._recorder.state.event_ring import (
    DIRECTORY as DIRECTORY,
    EventKind,
    EventRing,
    MetricKind,
    ring_path,
    size_of,
)
from rlinf_async._recorder.state.metric_names import cell_name
from rlinf_async._recorder.state.metric_table import WEIGHTS
from rlinf_async._recorder.state.ring_admission import Admission

logger = logging.getLogger(__name__)

_LEFT_FREE: Final = 20
"""Rings for which there must be room, so that many processes leave some of a small disk to the logs and the user."""

ring: EventRing | None = None
"""Of this process; None where it records nothing."""


_NONE: Final = itertools.repeat(False).__next__

admits: Callable[[], bool] = _NONE
"""Whether an operation that begins now is to be recorded: ``Admission.question``, without a call in between."""

_owner: object = None


class Followed(Protocol):
    """A ``Work``."""

    _event: int


def attach(owner: object, logs: str, identity: dict[str, Any]) -> None:
    """Has this process record; once for all of its clusters, the first of which counts.

    Args:
        owner: what ``detach`` is told.
        logs: directory of the run's logs on this machine.
        identity: see ``RingContents``.
    """
    global ring, admits, _owner
    slots = _slots()
    if ring is not None or slots == 0 or not logs:
        return
    path = ring_path(logs, identity["endpoint"])
    try:
        ring = EventRing(_mapping(path, size_of(slots)), slots, identity)
        admits = Admission(slots, ring.left_out).question()
        _owner = owner
    except (OSError, ValueError) as error:  # a full disk, no descriptors: the run goes on
        logger.debug("this process has no flight recorder: %s", error)


def detach(owner: object) -> None:
    """Records nothing more; what there is stays.  Only what has attached detaches."""
    # The mapping is not closed: another thread may be within an event.  It ends with the last reference.
    if _owner is owner:
        _forget()


def _forget() -> None:
    global ring, admits, _owner
    admits = _NONE
    ring = _owner = None


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


# -- hooks ------------------------------------------------------------------------------------------------------


def follow(work: Followed, kind: EventKind, name: str, value: float = 0.0) -> None:
    """Records an operation that begins now, once that is admitted; before anything may settle it."""
    here = ring
    if here is not None:
        work._event = here.begin(kind, name, value)


def ended(work: Followed, failed: bool) -> None:
    """Records the end of an operation that is followed."""
    here = ring
    if here is not None:
        here.end(work._event, failed)


def point(kind: EventKind, name: str, value: float = 0.0) -> None:
    """Records something that has happened."""
    here = ring
    if here is not None:
        here.point(kind, name, value)


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
