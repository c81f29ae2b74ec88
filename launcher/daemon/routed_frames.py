"""Functions that validate the router's frames, split routes by node, seal bodies, and duplicate descriptors."""

from __future__ import annotations

import fcntl
import os
from typing import Any, Final

from rlinf_async._core import frames
from rlinf_async._core.descriptors import limit_met
from rlinf_async._core.frames import FrameError
from rlinf_async._core.segment import close_fds, write_segment

_INT: Final = frozenset({int})


def parse_hop(hop: Any) -> tuple[int, list[int]]:
    """Return the node and the targets of one hop of a route.  Raises FrameError if the hop is malformed."""
    is_one = type(hop) is list and len(hop) == 2 and type(hop[0]) is int and type(hop[1]) is list
    if not is_one or len(hop[1]) % 2 or not set(map(type, hop[1])) <= _INT:
        raise FrameError(f"a route with {hop!r}")
    return hop[0], hop[1]


def split_route(route: Any, node: int, fds: list[int]) -> tuple[list[tuple[int, int]], list[list[Any]]]:
    """Split a route into local (number, slot) pairs and hops to other nodes; close ``fds`` on FrameError."""
    local: list[tuple[int, int]] = []
    remote_hops: list[list[Any]] = []
    try:
        if type(route) is not list:
            raise FrameError(f"a route that is {route!r}")
        for hop in route:
            hop_node, targets = parse_hop(hop)
            if hop_node == node:
                local.extend(zip(targets[::2], targets[1::2], strict=True))
            else:
                remote_hops.append(hop)
    except FrameError:
        close_fds(fds)
        raise
    return local, remote_hops


def slots_of(route: list[list[Any]]) -> list[int]:
    return [slot for _, targets in route for slot in targets[1::2]]


def is_well_formed(frame: list[Any], fds: list[int]) -> bool:
    """True if a CALL, REPLY or MESSAGE is well formed; a malformed frame would otherwise fail only at its receiver."""
    body = frame[-1]
    if frame[0] == frames.CALL and not frames.is_call_sound(frame):
        return False
    if not fds:
        return type(body) is bytes or type(body) is str
    return _is_sealed(body, fds)


def is_valid_queue_frame(frame: list[Any], fds: list[int]) -> bool:
    # A list as the body would be mistaken for a transfer between nodes; a string explains why the body was lost.
    if frame[0] != frames.PUT:
        return not fds
    return _is_sealed(frame[-1], fds) if fds else type(frame[-1]) in (bytes, int, str)


def _is_sealed(body: Any, fds: list[int]) -> bool:
    return type(body) is int and len(fds) == 1 and _is_sealed_memory(fds[0], body)


def _is_sealed_memory(fd: int, size: int) -> bool:
    try:
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK) and 0 <= size <= os.fstat(fd).st_size
    except OSError:
        return False


def seal_body(frame: list[Any], node: int) -> list[int]:
    """Move a body that was received as bytes, for lack of a free descriptor, into sealed memory; return its fd.

    If there is still no descriptor, the body stays in the frame, or an error text replaces a large body.
    """
    memory = frame[-1]
    try:
        fds = [write_segment([memory], len(memory))]
    except (OSError, MemoryError) as error:
        if len(memory) <= frames.MAX_UNSEALED_BYTES:
            frame[-1] = bytes(memory)
        else:
            frame[-1] = f"the daemon of node {node} cannot pass it on: {error}{limit_met(error)}"
        return []
    frame[1], frame[-1] = 1, len(memory)
    return fds


def duplicate_fds(fds: list[int], copies: int) -> list[list[int]]:
    """Return one set of descriptors per receiver; consumes the originals, even when it raises OSError."""
    if not fds:
        return []
    if not copies:
        close_fds(fds)
        return []
    sets = [fds]
    try:
        for _ in range(copies - 1):
            sets.append([])
            for fd in fds:
                sets[-1].append(os.dup(fd))
    except OSError:
        for copy in sets:
            close_fds(copy)
        raise
    return sets
