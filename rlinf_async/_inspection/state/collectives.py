"""Collective operations of torch.distributed: recognises them in a thread's frames, and decides which can meet.

The functions work with file and function names only; torch is neither imported nor called.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

from rlinf_async._inspection.state.run_report import Frame

_FILE: Final = "torch/distributed/distributed_c10d.py"
_PACKAGE: Final = "/torch/"

_PREFIXES: Final = ("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "gather", "scatter", "broadcast")
# Operations that have none of the prefixes. ``isend`` and ``irecv`` do not wait.
_NAMES: Final = frozenset(
    (
        *("barrier", "monitored_barrier", "reduce", "init_process_group", "new_group", "split_group"),
        *("send", "recv", "send_object_list", "recv_object_list", "batch_isend_irecv"),
    )
)

# Functions that pickle objects for a collective; they compute instead of waiting.
_ENCODING: Final = frozenset(("_object_to_tensor", "_tensor_to_object"))

_SENDING: Final = "send"
_RECEIVING: Final = "recv"
_EITHER: Final = "batch_isend_irecv"
_SETTING_UP: Final = "new_group"


def collective_of(stack: Sequence[Frame]) -> str | None:
    """Return the collective or point-to-point operation that a thread is in; None if it is in none.

    The outermost operation counts: ``all_gather_object`` calls ``all_gather``, and users know the former. Wrappers from
    ``c10d_logger.py`` are further out. If an operation calls back to pickle an object, it runs instead of waiting.
    """
    for place, frame in enumerate(stack):
        if frame.file.endswith(_FILE) and is_collective(frame.function):
            inner = stack[place + 1 :]
            waits = all(_PACKAGE in below.file and below.function not in _ENCODING for below in inner)
            return frame.function if waits else None
    return None


def is_collective(name: str) -> bool:
    return name in _NAMES or name.startswith(_PREFIXES)


def is_point_to_point(name: str) -> bool:
    return _family(name) in (_SENDING, _RECEIVING, _EITHER)


def is_rendezvous(name: str) -> bool:
    """True if the operation sets up a process group: it exchanges addresses, but never large data."""
    return _family(name.partition("#")[0]) == _SETTING_UP


@cache
def can_meet(one: str, other: str) -> bool:
    """True if ranks in these operations may meet, as in ``all_reduce`` and ``all_reduce#0``, or in variants."""
    (kind, _, group), (other_kind, _, other_group) = one.partition("#"), other.partition("#")
    if group and other_group and group != other_group:
        return False
    family, other_family = _family(kind), _family(other_kind)
    if _EITHER in (family, other_family):
        return {family, other_family} <= {_EITHER, _SENDING, _RECEIVING}
    if family in (_SENDING, _RECEIVING):
        return {family, other_family} == {_SENDING, _RECEIVING}
    return family == other_family


def _family(kind: str) -> str:
    if kind in ("init_process_group", "new_group", "split_group"):
        return _SETTING_UP  # each rank waits for the others at a store
    if kind.endswith("barrier"):
        return "barrier"
    return next((prefix for prefix in (*_PREFIXES, _SENDING, _RECEIVING) if kind.startswith(prefix)), kind)
