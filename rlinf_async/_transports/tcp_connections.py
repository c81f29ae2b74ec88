"""Finds this process's TCP connections among its descriptors, and shuts one down to end a Gloo operation.

Gloo itself cannot end an operation: neither ``abort`` nor ``shutdown`` of a group does, and a deadline closes the pair
but may leave the peer waiting. A ``shutdown(2)`` of the connection ends all its operations immediately, on both sides.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rlinf_async.errors import TransferFailed

Address = tuple[str, int]

_ESTABLISHED: Final = 1


class TcpConnection:
    """A connection used by other code in this process, through a duplicate of its descriptor."""

    _lock = threading.Lock()
    _held: set[tuple[Address, Address]] = set()  # noqa: RUF012  # the process's own table

    def __init__(self, duplicate: socket.socket) -> None:
        self._duplicate = duplicate
        self.near: Address = duplicate.getsockname()[:2]
        self.far: Address = duplicate.getpeername()[:2]

    @classmethod
    def find(cls, is_wanted: Callable[[Address, Address], bool]) -> TcpConnection | None:
        """Return the only matching connection that is not held. Raise TransferFailed if two pairs connect at once."""
        with cls._lock:
            found: dict[tuple[Address, Address], TcpConnection] = {}
            for duplicate in connections():
                try:
                    candidate = cls(duplicate)
                except OSError:  # the connection may just have ended
                    duplicate.close()
                    continue
                is_new = candidate._ends not in cls._held and candidate._ends not in found
                if is_new and is_wanted(candidate.near, candidate.far):
                    found[candidate._ends] = candidate
                else:
                    duplicate.close()
            if len(found) == 1:
                cls._held.update(found)
                return found.popitem()[1]
        for candidate in found.values():
            candidate._duplicate.close()
        if found:
            raise TransferFailed(f"{len(found)} new connections could be the one that Gloo has just made")
        return None

    @classmethod
    def is_held(cls, connection: socket.socket) -> bool:
        try:
            return (connection.getsockname()[:2], connection.getpeername()[:2]) in cls._held
        except OSError:  # the connection may just have ended
            return False

    @property
    def _ends(self) -> tuple[Address, Address]:
        return self.near, self.far

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._duplicate.shutdown(socket.SHUT_RDWR)
        self._duplicate.close()
        with self._lock:
            self._held.discard(self._ends)


def is_named_in(blob: bytes, address: Address) -> bool:
    """True if a ``sockaddr`` of this address occurs in the bytes that Gloo sends to a peer."""
    host, port = address
    if ":" in host:
        return struct.pack("!HI", port, 0) + socket.inet_pton(socket.AF_INET6, host.partition("%")[0]) in blob
    return struct.pack("!H", port) + socket.inet_aton(host) in blob


def connections() -> Iterator[socket.socket]:
    """Yield duplicates of all this process's TCP connections, for the caller to close."""
    for entry in Path("/proc/self/fd").iterdir():
        connection = connection_at(int(entry.name))
        if connection is not None:
            yield connection


def connection_at(fd: int) -> socket.socket | None:
    try:
        if not str(Path(f"/proc/self/fd/{fd}").readlink()).startswith("socket:"):
            return None
        # Inspect a duplicate, because the number itself may be closed and reused at any moment.
        duplicate = os.dup(fd)
    except OSError:
        return None
    try:
        candidate = socket.socket(fileno=duplicate)
    except OSError:  # the number was reused for another file
        os.close(duplicate)
        return None
    if _is_established(candidate):
        return candidate
    candidate.close()
    return None


def _is_established(candidate: socket.socket) -> bool:
    if candidate.family not in (socket.AF_INET, socket.AF_INET6) or candidate.type != socket.SOCK_STREAM:
        return False
    try:
        return candidate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED
    except OSError:
        return False
