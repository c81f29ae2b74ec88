"""UNIX sockets between a daemon and its node's processes: listen, connect, check the peer's user id (SO_PEERCRED)."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rlinf_async.errors import AuthError

_MAX_ADDRESS_BYTES: Final = 107


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """Return process id and user id of the other end, as the kernel reports them."""
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def check_peer(sock: socket.socket) -> int:
    """Return the peer's process id. Raise AuthError if the other end belongs to another user."""
    pid, uid = peer_of(sock)
    if uid != os.geteuid():
        raise AuthError(f"the other end of the UNIX socket belongs to user {uid}, this process to {os.geteuid()}")
    return pid


def connect(path: str | bytes, *, waits: bool = True) -> socket.socket:
    """Connect to this user's process that listens at ``path``; bytes are an abstract address, outside any directory.

    Raises:
        AuthError: the socket's directory or the listener belongs to another user.
        ConnectionError, FileNotFoundError: nothing listens there.
        BlockingIOError: the listener does not accept, because its process is stopped; only if ``waits`` is False.
    """
    if isinstance(path, str):
        status = Path(path).parent.lstat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise AuthError(f"{Path(path).parent} must belong to this user with mode 0700")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    sock.setblocking(waits)
    try:
        with _short(path) as address:
            sock.connect(address)
        check_peer(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def listen(path: str | bytes) -> socket.socket:
    """Return a listening socket at ``path``, inside a directory of mode 0700; bytes are an abstract address."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with _short(path) as address:
            sock.bind(address)
        if isinstance(path, str):
            Path(path).chmod(0o600)
        sock.listen(128)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


@contextlib.contextmanager
def _short(path: str | bytes) -> Iterator[bytes]:
    """Context manager: yields a socket address; it shortens an overlong path by a descriptor of its directory."""
    address = os.fsencode(path)
    if isinstance(path, bytes) or len(address) <= _MAX_ADDRESS_BYTES:
        yield address
        return
    folder, name = os.path.split(address)
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield b"/proc/self/fd/%d/%s" % (descriptor, name)
    finally:
        os.close(descriptor)
