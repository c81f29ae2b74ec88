"""Finds this process's pending ``torch.distributed`` collectives, aborts its groups, probes its main thread.

torch's flight recorder lists the pending collectives of Gloo and NCCL, whichever thread started them and however they
are awaited. It lacks ``send``, ``recv`` and the rendezvous of ``init_process_group``, and not every torch has it, so
these operations are recognised by the main thread staying in one frame of ``torch.distributed``. Other threads are not
sampled, because a user's thread may wait there forever without blocking a call.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from rlinf_async._core.own_logger import own_logger
from rlinf_async._transports.gloo_abort import end_connections
from rlinf_async._transports.tcp_connections import connections

logger = own_logger(__name__)

_PACKAGE: Final = "torch.distributed"

_WAITING_MODULES: Final = frozenset({"torch.distributed.distributed_c10d", "torch.distributed.rendezvous"})
"""Modules that only wait for peers; a frame in any other module of the package may also compute or write files."""

FramePosition = tuple[FrameType | None, int]

_RECORDERS: Final = ("_dump_fr_trace_json", "_dump_nccl_trace_json")


@dataclass(frozen=True)
class Pending:
    """A pending operation.

    Attributes:
        name: name of its function, such as ``"all_reduce"``.
        since: time at which it began or was first seen, by ``time.monotonic()``.
        group: name of its process group; "" if unknown.
        record: its number in the recorder; -1 if not recorded.
    """

    name: str
    since: float
    group: str = ""
    record: int = -1

    @property
    def is_rendezvous(self) -> bool:
        return "group" in self.name


class Collectives:
    """An observer of this process's pending collectives, for use on one thread."""

    def __init__(self) -> None:
        self._seen: tuple[FramePosition, float] | None = None
        self._aborted: set[int] = set()

    def pending(self) -> list[Pending]:
        """Return the pending operations; an unrecorded operation is timed from when it is first seen."""
        if "torch.distributed.distributed_c10d" not in sys.modules:
            return []
        try:
            recorded = [operation for operation in _recorded() if operation.record not in self._aborted]
        except Exception:  # the format may differ in this torch version
            logger.warning("torch's flight recorder could not be read", exc_info=True)
            recorded = []
        return [*recorded, *self._sampled()]

    def sample(self) -> None:
        if "torch.distributed.distributed_c10d" in sys.modules:
            self._sampled()

    def abort(self, pending: list[Pending]) -> None:
        """End these operations, and with them all process groups of this process; see ``abort``.

        Their records are ignored from now on, because an aborted back end's records may stay open forever.
        """
        self._aborted |= {operation.record for operation in pending if operation.record >= 0}
        abort(pending)
        self.forget()

    def forget(self) -> None:
        self._seen = None

    def _sampled(self) -> list[Pending]:
        now, place = time.monotonic(), _main_thread_place()
        frame = place[0]
        if frame is None or frame.f_globals.get("__name__") not in _WAITING_MODULES:
            self._seen = None
            return []
        # Keep the frame itself, because a new frame might reuse its address.
        if self._seen is None or self._seen[0] != place:
            self._seen = (place, now)
        return [Pending(_called(frame), self._seen[1])]


def _main_thread_place() -> FramePosition:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame, frame.f_lasti if frame is not None else -1


class PythonProbe:
    """A probe that tells whether the main thread has run Python code since the probe began, or is stuck in a C call.

    The main thread's position is not evidence, because a compute loop may be at the same instruction at each sample.
    But the interpreter runs a pending call on the main thread between two instructions.
    """

    _numbers = itertools.count(1)
    _latest = 0

    def __init__(self) -> None:
        self._number = next(self._numbers)
        if ctypes.pythonapi.Py_AddPendingCall(_note_python, ctypes.c_void_p(self._number)):
            self._number = 0  # too many calls are pending, so the probe gives no evidence

    @property
    def has_run(self) -> bool:
        return self._number <= PythonProbe._latest


def _note(number: int) -> int:
    PythonProbe._latest = number
    return 0


_note_python: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_note)
"""A reference that keeps the function alive, because the interpreter knows only its address."""


def abort(pending: list[Pending]) -> None:
    """End this process's pending operations, and with them all its process groups, without blocking.

    Gloo's connections are shut down, which the peers also notice. Other back ends (NCCL) have an ``abort``, which may
    take a long time and therefore runs on a separate thread.
    """
    ended = end_connections()
    if any(operation.is_rendezvous for operation in pending):
        ended += _end_store_connections()
    logger.info("%d connections of torch.distributed have been ended", ended)
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    groups = [group for group, (backend, _) in list(c10d._world.pg_map.items()) if backend != "gloo"]
    if groups:
        threading.Thread(target=_abort_groups, args=(groups,), name="rlinf-abort", daemon=True).start()


def forget_half_made() -> None:
    """Roll back the group number used up by a failed ``init_process_group``.

    torch numbers default groups from 0, increments the number before it connects, and resets it only when it destroys a
    created group. Without the rollback the next group would have number 1 here and 0 in a new process, and their store
    keys would never match. tests/test_restarts.py::test_ranks_make_their_process_group_anew_as_the_page_says
    """
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is not None and not c10d.is_initialized():
        c10d._world.group_count = 0


def takes_part(pending: Pending, rank: int, world_size: int) -> bool:
    """True if a rank of a worker group certainly belongs to the operation's process group.

    Membership is certain only if the default process group matches the worker group.
    """
    if pending.is_rendezvous:
        return os.environ.get("WORLD_SIZE") == str(world_size)
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    if not c10d.is_initialized() or c10d.get_world_size() != world_size:
        return False
    groups = [group for group, name in list(c10d._world.pg_names.items()) if name == pending.group]
    return any(rank in c10d.get_process_group_ranks(group) for group in groups)


def _recorded() -> Iterator[Pending]:
    import torch._C

    now, clock = time.monotonic(), time.time()
    # Groups without a name in torch's table are this framework's private groups between two workers.
    names = set(sys.modules["torch.distributed.distributed_c10d"]._world.pg_names.values())
    recorders = getattr(torch._C, "_distributed_c10d", None)
    for dump in filter(None, (getattr(recorders, name, None) for name in _RECORDERS)):
        # Dumping the full record takes up to half a second; the heads alone show whether an operation is pending.
        heads = json.loads(dump(False, True)).get("pg_status", {}).values()
        if all(head.get("last_enqueued_collective") == head.get("last_completed_collective") for head in heads):
            continue
        for entry in json.loads(dump(True, False)).get("entries", ()):
            group = entry["process_group"][0]
            if not entry["retired"] and group in names:
                name = entry["profiling_name"].partition(":")[2]
                yield Pending(name, now - (clock - entry["time_created_ns"] / 1e9), group, entry["record_id"])


def _called(frame: FrameType) -> str:
    name, caller = frame.f_code.co_name, frame.f_back
    while caller is not None and caller.f_globals.get("__name__", "").startswith(_PACKAGE):
        if caller.f_globals["__name__"] in _WAITING_MODULES:
            name = caller.f_code.co_name
        caller = caller.f_back
    return name


def _end_store_connections() -> int:
    """End the connections to the group's own store; nothing else frees a thread that waits for a key."""
    import socket

    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT")
    ended = 0
    for connection in connections():
        with connection:
            try:
                host, far = connection.getpeername()[:2]
                if str(far) == port and host.rpartition(":")[2] in (address, address.rpartition(":")[2]):
                    connection.shutdown(socket.SHUT_RDWR)
                    ended += 1
            except OSError:  # the connection may just have ended
                continue
    return ended


def _abort_groups(groups: list[Any]) -> None:
    for group in groups:
        for device in group._device_types:
            try:
                backend = group._get_backend(device)
                if backend.name() != "gloo":
                    backend.abort()
            except Exception as error:
                logger.warning("process group %s could not be aborted: %s", group.group_name, error)
